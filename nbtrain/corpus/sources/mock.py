"""Seeded random words: meaningless text of any size that needs no file."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources.base import SourceReader

SYLLABLES = tuple("ba do ki lu mer nos pa ri sen to ul van we xi yo zat".split())  # noqa: SIM905 (read best as words)
NUM_WORDS = 2_000


class MockReader(SourceReader):
    """Yields documents of 20 to 200 words, drawn by Zipf's law from 2,000 made-up words."""

    kind = "mock"

    def parts(self) -> Iterator[SourcePart]:
        # A single random generator produces the whole text, so the source is one part.
        yield SourcePart("mock")

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        # RandomState's stream is frozen, so the same seed gives the same text with any NumPy.
        generator = np.random.RandomState(self.config.seed % 2**32)
        words = ["".join(generator.choice(SYLLABLES, size=generator.randint(1, 4))) for _ in range(NUM_WORDS)]
        frequencies = 1 / np.arange(1, NUM_WORDS + 1)
        frequencies /= frequencies.sum()
        for _ in range(self.config.num_documents):
            drawn = generator.choice(NUM_WORDS, size=generator.randint(20, 201), p=frequencies)
            yield " ".join(words[index] for index in drawn).capitalize() + "."

    def fingerprint(self) -> dict[str, Any]:
        return {"generator": 1}

    def licence(self) -> str:
        return "CC0-1.0"

    def attribution(self) -> str:
        return "made by nbtrain"
