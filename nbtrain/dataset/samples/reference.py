"""The log-probabilities against which DPO measures rewards, stored in the index cache with the data.

    index-cache/<key>-reference.npy    float32 [sequences, 2]: chosen, rejected; NaN for a dropped pair

They come from the weights that a run starts from: train/preference_reference.py computes them before the
first step. The key identifies the pairs, the weights and how they are computed. So runs that differ in beta,
learning rate or layout share them, and a resume reads what its first start has written.
"""

from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.gpt_index import Allocate
from nbtrain.dataset.samples.index_files import cached_arrays

VERSION = 1
NAME = "reference"
# Fields of the section model that say how it is trained, split or computed.
NOT_THE_MODEL = {
    "architecture",
    "attention_backend",
    "attention_dropout",
    "compile",
    "cross_entropy_chunk_tokens",
    "hidden_dropout",
    "init_method_std",
    "make_vocab_size_divisible_by",
    "seed",
}


def description_of(config: RunConfig, dataset_sha256: str, weights_sha256: str) -> dict[str, Any]:
    """Return the settings that decide the numbers. `weights_sha256`: hash of all weights at the start."""
    model = config.model.model_dump(exclude=NOT_THE_MODEL)
    return {
        "reference_version": VERSION,
        "dataset_sha256": dataset_sha256,
        "weights_sha256": weights_sha256,
        "model": model,
        "vocab_size": config.tokenizer.vocab_size,
        "dtype": config.precision.dtype,
        "autocast": config.precision.autocast,
        "lora": config.lora.model_dump(exclude={"dropout"}) if config.lora is not None else None,
    }


class _Unknown(Exception):
    """The log-probabilities have not been computed."""


def known_reference(folder: Path, description: dict[str, Any]) -> np.ndarray | None:
    """Return float32 [sequences, 2], memory-mapped; None if it has not been computed."""

    def build(allocate: Allocate) -> None:
        raise _Unknown

    try:
        return cached_arrays(folder, description, (NAME,), build)[NAME]
    except _Unknown:
        return None


def keep_reference(folder: Path, description: dict[str, Any], found: np.ndarray) -> None:
    """Write computed log-probabilities, for all runs that need them."""

    def build(allocate: Allocate) -> None:
        allocate(NAME, found.shape, np.dtype(np.float32))[...] = found

    cached_arrays(folder, description, (NAME,), build)
