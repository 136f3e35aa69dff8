"""Writes the adapters of a checkpoint as a `peft` folder, and compares the folder with the checkpoint.

pretrained/peft.py maps the names; checkpoint/weights/peft_adapters.py reads such a folder.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.pretrained.files import write_peft_folder
from nbtrain.checkpoint.pretrained.ia3 import write_vectors
from nbtrain.checkpoint.weights.peft_adapters import read_adapters
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.schema import RunConfig
from nbtrain.model.names import adapters_of
from nbtrain.pretrained.peft import (
    AdaptedModule,
    adapted_modules,
    settings_of,
    shapes_of,
)
from nbtrain.pretrained.peft_tokens import token_modules


def write_adapters(
    store: CheckpointStore, config: RunConfig, folder: Path, dtype: torch.dtype
) -> Iterator[tuple[int, int]]:
    """Write the adapters of a checkpoint and yield (bytes done, total bytes)."""
    assert config.lora is not None
    if config.lora.kind == "ia3":
        yield from write_vectors(store, config, folder, dtype)
        return
    places = {
        tensor: (module, number)
        for module in adapted_modules(config)
        for number, tensor in enumerate(module.tensors)
    }

    rows = {module.tensor: module.rows for module in token_modules(config)}

    def tensor_of(name: str) -> torch.Tensor:
        if name in rows:
            return store.full(rows[name]).to(dtype)
        module, number = places[name]
        a, b = (store.full(each) for each in adapters_of(module.weight))
        return _written(module, a, b)[number].to(dtype)

    yield from write_peft_folder(folder, shapes_of(config), dtype, tensor_of, settings_of(config))


def check_adapters(
    store: CheckpointStore, config: RunConfig, folder: Path, dtype: torch.dtype
) -> Iterator[float]:
    """Read the folder as an import would, and compare every bit with the checkpoint. Raises CheckpointError
    if a bit differs.
    """
    read = read_adapters(folder, config)
    for name in read.parameters:
        if not torch.equal(read.full(name), store.full(name).to(dtype).float()):
            raise CheckpointError(
                f"{display(folder)}: {name} differs from what was written. Export it again."
            )
        yield 0.0


def _written(module: AdaptedModule, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrices A and B of a module, as peft stores them, from our adapter's matrices."""
    rank = b.shape[1]
    used = sorted(set(module.projections))
    theirs_a = torch.cat([a[one * rank : (one + 1) * rank] for one in used])
    theirs_b = torch.zeros(module.outputs, len(used) * rank)
    for piece, projection in zip(module.pieces, module.projections, strict=True):
        column = used.index(projection) * rank
        rows = b[piece.first : piece.first + piece.count]
        theirs_b[piece.there : piece.there + piece.count, column : column + rank] = rows
    return theirs_a, theirs_b
