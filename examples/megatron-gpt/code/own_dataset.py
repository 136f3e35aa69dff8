"""A dataset of one's own: sums of two numbers as bytes, of which only the result is in the loss.

    "17+25=42" + padding     tokens: the bytes; loss_mask: 1 for the digits after "="

Use it in a run without data.sources, whose vocabulary has at least 256 ids: `code: own_dataset.py`.
"""

import numpy as np

LENGTH = 32  # model.seq_length
NUMBERS = 100
SPLITS = {"train": (0, 900), "valid": (900, 950), "test": (950, 1000)}


class _Sums:
    """One split: sums of two numbers below NUMBERS, in a fixed random order."""

    def __init__(self, first: int, last: int):
        pairs = np.random.default_rng(7).permutation(NUMBERS * NUMBERS)[first:last]
        self._pairs = [divmod(int(pair), NUMBERS) for pair in pairs]

    def __len__(self) -> int:
        return len(self._pairs)

    def samples(self, index: int) -> dict:
        """Return LENGTH + 1 tokens, and the mask of the labels: the tokens from the second on."""
        a, b = self._pairs[index]
        question, result = f"{a}+{b}=".encode(), f"{a + b}".encode()
        tokens, mask = np.zeros(LENGTH + 1, np.int64), np.zeros(LENGTH)
        text = question + result
        tokens[: len(text)] = list(text)
        mask[len(question) - 1 : len(text) - 1] = 1
        return {"tokens": tokens, "loss_mask": mask}


def dataset(split: str) -> _Sums:
    """Return a split: "train", "valid" or "test"."""
    return _Sums(*SPLITS[split])
