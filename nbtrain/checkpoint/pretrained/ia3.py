"""Writes the IA3 vectors of a checkpoint as a `peft` folder.

pretrained/peft_ia3.py maps the names; checkpoint/weights/peft_vectors.py reads such a folder.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from nbtrain.checkpoint.pretrained.files import write_peft_folder
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.peft_ia3 import rescaled_modules, settings_of, shapes_of


def write_vectors(
    store: CheckpointStore, config: RunConfig, folder: Path, dtype: torch.dtype
) -> Iterator[tuple[int, int]]:
    """Write the vectors of a checkpoint and yield (bytes done, total bytes)."""
    modules = {module.tensor: module for module in rescaled_modules(config)}

    def tensor_of(name: str) -> torch.Tensor:
        module = modules[name]
        vector = store.full(module.vector)
        if module.is_input:
            return vector.view(1, -1).to(dtype)
        written = torch.ones(module.size)
        for piece, place in module.pieces:
            if place is not None:
                written[piece.there : piece.there + piece.count] = vector[place : place + piece.count]
        return written.view(-1, 1).to(dtype)

    yield from write_peft_folder(folder, shapes_of(config), dtype, tensor_of, settings_of(config))
