"""Stores the reference log-probabilities for DPO's rewards in the index cache, next to the data.

    index-cache/<key>-reference.npy    float32 [sequences, 2]: chosen, rejected; NaN for a dropped pair

train/preference_reference.py computes them from the run's initial weights before its first step. The key
identifies the pairs, the weights and the computation. Runs that differ only in beta, learning rate or layout
therefore share them, and a resumed run reads the values of its first start.
"""

from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import Architecture, marked
from nbtrain.dataset.samples.gpt_index import Allocate
from nbtrain.dataset.samples.index_files import cached_arrays

VERSION = 1
NAME = "reference"


def description_of(config: RunConfig, dataset_sha256: str, weights_sha256: str) -> dict[str, Any]:
    """Return the settings that determine the log-probabilities.

    `weights_sha256` is the hash of all initial weights.
    """
    model = config.model.model_dump(include=set(marked(ModelConfig, Architecture)))
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
    """Raised when the log-probabilities have not been computed."""


def known_reference(folder: Path, description: dict[str, Any]) -> np.ndarray | None:
    """Return the stored log-probabilities, float32 [sequences, 2], or None if they were not computed."""

    def build(allocate: Allocate) -> None:
        raise _Unknown

    try:
        return cached_arrays(folder, description, (NAME,), build)[NAME]
    except _Unknown:
        return None


def keep_reference(folder: Path, description: dict[str, Any], found: np.ndarray) -> None:
    """Store computed log-probabilities for every run that needs them."""

    def build(allocate: Allocate) -> None:
        allocate(NAME, found.shape, np.dtype(np.float32))[...] = found

    cached_arrays(folder, description, (NAME,), build)
