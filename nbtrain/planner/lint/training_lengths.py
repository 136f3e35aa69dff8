"""Training lengths of published models, with which a run's tokens per parameter are compared.

A run is compared with models of a similar size: up to SIMILAR times smaller or larger.
"""

import math
from dataclasses import dataclass

SIMILAR = 2.5
# Farther than this factor from every published length, a run is far from all of them.
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
        """Tokens per parameter."""
        return self.tokens / self.parameters


def _family(name: str, source: str, *sizes: tuple[str, float, float]) -> tuple[PublishedLength, ...]:
    return tuple(
        PublishedLength(f"{name} {size}", parameters, tokens, source) for size, parameters, tokens in sizes
    )


def _same(name: str, source: str, tokens: float, *sizes: tuple[str, float]) -> tuple[PublishedLength, ...]:
    return _family(name, source, *((size, parameters, tokens) for size, parameters in sizes))


LENGTHS: tuple[PublishedLength, ...] = (
    *_same(
        "GPT-3", "arXiv:2005.14165, table 2.1", 300e9,
        ("125M", 125e6), ("350M", 350e6), ("760M", 760e6), ("1.3B", 1.3e9), ("2.7B", 2.7e9), ("6.7B", 6.7e9),
        ("13B", 13e9), ("175B", 175e9),
    ),
    *_same("Gopher", "arXiv:2112.11446", 300e9, ("280B", 280e9)),
    *_same("MT-NLG", "arXiv:2201.11990", 270e9, ("530B", 530e9)),
    *_same("Chinchilla", "arXiv:2203.15556", 1.4e12, ("70B", 70e9)),
    *_same("PaLM", "arXiv:2204.02311", 780e9, ("8B", 8e9), ("62B", 62e9), ("540B", 540e9)),
    *_same("OPT", "arXiv:2205.01068", 180e9, ("175B", 175e9)),
    *_same("BLOOM", "arXiv:2211.05100", 366e9, ("176B", 176e9)),
    *_family(
        "LLaMA", "arXiv:2302.13971",
        ("7B", 6.7e9, 1e12), ("13B", 13e9, 1e12), ("33B", 32.5e9, 1.4e12), ("65B", 65.2e9, 1.4e12),
    ),
    *_family(
        "Cerebras-GPT", "arXiv:2304.03208",
        ("111M", 111e6, 2.2e9), ("256M", 256e6, 5.1e9), ("590M", 590e6, 11.8e9), ("1.3B", 1.3e9, 26.3e9),
        ("2.7B", 2.7e9, 53e9), ("6.7B", 6.7e9, 133e9), ("13B", 13e9, 257e9),
    ),
    *_same(
        "Pythia", "arXiv:2304.01373", 300e9,
        ("160M", 162e6), ("410M", 405e6), ("1B", 1.01e9), ("2.8B", 2.8e9), ("6.9B", 6.9e9), ("12B", 11.8e9),
    ),
    *_same("Llama 2", "arXiv:2307.09288", 2e12, ("7B", 7e9), ("13B", 13e9), ("70B", 70e9)),
    *_same("Falcon", "arXiv:2311.16867", 3.5e12, ("180B", 180e9)),
    *_same("TinyLlama", "arXiv:2401.02385", 3e12, ("1.1B", 1.1e9)),
    *_same("Llama 3.1", "arXiv:2407.21783", 15.6e12, ("8B", 8e9), ("70B", 70.6e9), ("405B", 405e9)),
    *_same(
        "Qwen2.5", "arXiv:2412.15115", 18e12,
        ("0.5B", 0.49e9), ("1.5B", 1.54e9), ("3B", 3.09e9), ("7B", 7.6e9), ("14B", 14.7e9), ("32B", 32.5e9),
        ("72B", 72.7e9),
    ),
    *_family(
        "SmolLM2", "arXiv:2502.02737",
        ("135M", 135e6, 2e12), ("360M", 362e6, 4e12), ("1.7B", 1.7e9, 11e12),
    ),
)  # fmt: skip


def neighbours(parameters: float, tokens: float) -> tuple[PublishedLength | None, PublishedLength | None]:
    """Return the published models of a similar size with the next lower and the next higher ratio of tokens
    to parameters.
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
    """Return whether every published model of a similar size has over FAR times more or fewer tokens per
    parameter; False if no published model has a similar size.
    """
    found = [length for length in neighbours(parameters, tokens) if length is not None]
    ratio = tokens / parameters
    return bool(found) and all(abs(math.log(length.ratio / ratio)) > math.log(FAR) for length in found)
