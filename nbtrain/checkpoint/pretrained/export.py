"""Exports the tensors of a run's checkpoint in the format of another program.

The other files of the exported folder are written by exchange/export_model.py. Only one tensor is in memory
at a time, together with the parameter that it is sliced from.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint.files.manifest import whole_step
from nbtrain.checkpoint.pretrained.files import write_file, write_sharded
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.checkpoint.weights.opened import open_checkpoint, weights_of
from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.folder import OWN
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.start import open_start
from nbtrain.pretrained.tensors import Sizes, parameter_shapes
from nbtrain.pretrained.written import family_of, own_description


def open_weights(run: RunDir, config: RunConfig, step: int, dtype: str | None) -> FullParameters:
    """Return the weights of a step. If step 0 has no checkpoint, the weights of `init_from` are returned for
    it. Raises CheckpointError if the step has no weights.
    """
    wanted = None if dtype is None else DTYPES[dtype]
    if step == 0 and checkpoint_problem(run.checkpoint(0)) is not None:
        if config.init_from is None:
            raise CheckpointError(
                f"{display(run.path)}: has no weights of step 0, because its configuration sets no init_from."
            )
        return FullParameters(weights_of(open_start(config, run), config), wanted)
    whole_step(run, step)
    return FullParameters(open_checkpoint(run, step), wanted)


def write_folder(
    weights: FullParameters, config: RunConfig, folder: Path, most_bytes: int
) -> Iterator[tuple[int, int]]:
    """Write the safetensors files of a model family into a folder and yield (bytes done, total bytes)."""
    known = family_of(config).tensors(Sizes.of(config.model, weights.vocab_size))

    def tensor_of(name: str) -> torch.Tensor:
        return weights.tensor(known, name)

    written = write_sharded(folder, known.tensors, weights.dtype, tensor_of, most_bytes)
    yield from _summed(written, known.tensors, weights.dtype)


def write_consolidated(
    weights: FullParameters, config: RunConfig, path: Path, step: int
) -> Iterator[tuple[int, int]]:
    """Write all parameters under our own names into one file, whose metadata describes the model."""
    shapes = parameter_shapes(Sizes.of(config.model, weights.vocab_size))
    described = own_description(config, weights.vocab_size, step)
    metadata = {"format": "pt", OWN: json.dumps(described)}
    written = write_file(path, shapes, weights.dtype, weights.full, metadata)
    yield from _summed(written, shapes, weights.dtype)


def check_consolidated(weights: FullParameters, config: RunConfig, path: Path) -> Iterator[float]:
    """Read the file as an import would, and compare every bit with the checkpoint. Raises CheckpointError if
    a bit differs.
    """
    read = FullParameters(FolderWeights(open_model(path), weights.vocab_size), weights.dtype)
    for name in read.source.parameters:
        if not torch.equal(read.full(name), weights.full(name)):
            raise CheckpointError(f"{display(path)}: {name} differs from what was written. Export it again.")
        yield 0.0


def _summed(
    written: Iterator[int], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> Iterator[tuple[int, int]]:
    total, done = sum(map(math.prod, shapes.values())) * dtype.itemsize, 0
    for count in written:
        done += count
        yield done, total
