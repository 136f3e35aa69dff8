"""Training lengths of published models, for comparison with a run's tokens per parameter.

A run is compared with models of a similar size: up to SIMILAR times smaller or larger. Each row was checked
against its source on 2026-11-29.
"""

import math
from dataclasses import dataclass

SIMILAR = 2.5
# A run whose tokens per parameter differ from every published ratio by more than this factor is reported.
FAR = 2.0


@dataclass(frozen=True, slots=True)
class PublishedLength:
    """Parameters and training tokens of one published model."""

    name: str
    parameters: float
    tokens: float
    source: str

    @property
    def ratio(self) -> float:
        """Training tokens per parameter."""
        return self.tokens / self.parameters


def _family(name: str, source: str, *sizes: tuple[str, float, float]) -> tuple[PublishedLength, ...]:
    return tuple(
        PublishedLength(f"{name} {size}", parameters, tokens, source) for size, parameters, tokens in sizes
    )


def _same(name: str, source: str, tokens: float, *sizes: tuple[str, float]) -> tuple[PublishedLength, ...]:
    return _family(name, source, *((size, parameters, tokens) for size, parameters in sizes))


# OPT is omitted, because its paper gives the tokens in its corpus and its schedule, not the training tokens.
LENGTHS: tuple[PublishedLength, ...] = (
    *_same(
        "GPT-3", "arXiv:2005.14165, table 2.1", 300e9,
        ("125M", 125e6), ("350M", 350e6), ("760M", 760e6), ("1.3B", 1.3e9), ("2.7B", 2.7e9), ("6.7B", 6.7e9),
        ("13B", 13e9), ("175B", 175e9),
    ),
    *_same("Gopher", "arXiv:2203.15556, table 1", 300e9, ("280B", 280e9)),
    *_same("MT-NLG", "arXiv:2203.15556, table 1", 270e9, ("530B", 530e9)),
    *_same("Chinchilla", "arXiv:2203.15556, table 1", 1.4e12, ("70B", 70e9)),
    # All three sizes were trained on the same text.
    *_same(
        "PaLM", "arXiv:2204.02311, table 1 and section 3", 780e9,
        ("8B", 8.63e9), ("62B", 62.5e9), ("540B", 540.35e9),
    ),
    *_same("BLOOM", "arXiv:2211.05100", 366e9, ("176B", 176e9)),
    *_family(
        "LLaMA", "arXiv:2302.13971, table 2",
        ("7B", 6.7e9, 1e12), ("13B", 13e9, 1e12), ("33B", 32.5e9, 1.4e12), ("65B", 65.2e9, 1.4e12),
    ),
    *_family(
        "Cerebras-GPT", "arXiv:2304.03208 and its model cards",
        ("111M", 111e6, 2.22e9), ("256M", 256e6, 5.12e9), ("590M", 590e6, 11.8e9), ("1.3B", 1.3e9, 26.3e9),
        ("2.7B", 2.7e9, 53e9), ("6.7B", 6.7e9, 133e9), ("13B", 13e9, 257e9),
    ),
    # 143,000 steps of 1,024 sequences of 2,048 tokens.
    *_same(
        "Pythia", "arXiv:2304.01373 and EleutherAI/pythia, README.md", 299.9e9,
        ("160M", 162e6), ("410M", 405e6), ("1B", 1.01e9), ("2.8B", 2.78e9), ("6.9B", 6.86e9), ("12B", 11.8e9),
    ),
    *_same(
        "Llama 2", "meta-llama/llama-models, llama2/MODEL_CARD.md", 2e12,
        ("7B", 7e9), ("13B", 13e9), ("70B", 70e9),
    ),
    *_same("Falcon", "arXiv:2311.16867", 3.5e12, ("180B", 180e9)),
    *_same("TinyLlama", "jzhang38/TinyLlama, README.md", 3e12, ("1.1B", 1.1e9)),
    # The source gives "15T+" for the two smaller models.
    *_same(
        "Llama 3.1", "meta-llama/llama-models, llama3_1/MODEL_CARD.md", 15e12, ("8B", 8e9), ("70B", 70e9)
    ),
    *_same("Llama 3.1", "arXiv:2407.21783, section 1", 15.6e12, ("405B", 405e9)),
    # The source says that "all models" used a dataset of "up to 18 trillion tokens", without a number for
    # each size.
    *_same(
        "Qwen2.5", "at most; qwenlm.github.io/blog/qwen2.5", 18e12,
        ("0.5B", 0.49e9), ("1.5B", 1.54e9), ("3B", 3.09e9), ("7B", 7.61e9), ("14B", 14.7e9), ("32B", 32.5e9),
        ("72B", 72.7e9),
    ),
    *_family(
        "SmolLM2", "arXiv:2502.02737 and its model cards",
        ("135M", 135e6, 2e12), ("360M", 362e6, 4e12), ("1.7B", 1.7e9, 11e12),
    ),
)  # fmt: skip


def neighbours(parameters: float, tokens: float) -> tuple[PublishedLength | None, PublishedLength | None]:
    """Return the published models of a similar size with the next lower and the next higher ratio.

    The ratio is the number of training tokens per parameter, which is compared with tokens / parameters. An
    entry of the pair is None if no published model of a similar size has a lower (or higher) ratio.
    """
    ratio = tokens / parameters
    similar = [
        length for length in LENGTHS if abs(math.log(length.parameters / parameters)) <= math.log(SIMILAR)
    ]
    lower = [length for length in similar if length.ratio <= ratio]
    higher = [length for length in similar if length.ratio > ratio]
    return (
        max(lower, key=lambda length: length.ratio, default=None),
        min(higher, key=lambda length: length.ratio, default=None),
    )


def is_far(parameters: float, tokens: float) -> bool:
    """Return whether no published model of a similar size has a similar ratio of tokens to parameters.

    Two ratios are similar if they differ by at most a factor of FAR. The result is False if no published
    model has a similar size.
    """
    found = [length for length in neighbours(parameters, tokens) if length is not None]
    ratio = tokens / parameters
    return bool(found) and all(abs(math.log(length.ratio / ratio)) > math.log(FAR) for length in found)
