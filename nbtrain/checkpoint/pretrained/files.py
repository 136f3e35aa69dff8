"""Writes safetensors files one tensor at a time, so that a file may be larger than memory.

The writer of the safetensors library needs all tensors of a file at once. This module writes the header
first, from names, formats and shapes alone, and then one tensor after the other. The files equal the
library's for tensors of one format, sorted by name.

    model.safetensors                                    if all tensors fit in one file, else
    model-00001-of-00005.safetensors, ...                and
    model.safetensors.index.json                         the file of each tensor
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from nbtrain.base import files
from nbtrain.pretrained.folder import INDEX, PEFT_SETTINGS, PEFT_WEIGHTS, SINGLE

Shapes = Mapping[str, tuple[int, ...]]
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
ALIGNMENT = 8


def write_sharded(
    folder: Path,
    shapes: Shapes,
    dtype: torch.dtype,
    tensor_of: Callable[[str], torch.Tensor],
    most_bytes: int,
) -> Iterator[int]:
    """Write tensors into a folder, in files of at most `most_bytes`, and yield the size of each tensor in
    bytes.

    A tensor that is larger than `most_bytes` gets its own file. `tensor_of` returns a tensor by its name.
    """
    shards = _shards(shapes, dtype.itemsize, most_bytes)
    metadata = {"format": "pt"}
    if len(shards) == 1:
        yield from write_file(folder / SINGLE, shapes, dtype, tensor_of, metadata)
        return
    placed: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        part = {one: shapes[one] for one in names}
        yield from write_file(folder / name, part, dtype, tensor_of, metadata)
        placed |= dict.fromkeys(names, name)
    count = sum(map(math.prod, shapes.values()))
    index = {
        "metadata": {"total_parameters": count, "total_size": count * dtype.itemsize},
        "weight_map": dict(sorted(placed.items())),
    }
    files.write_text(folder / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")


def write_file(
    path: Path,
    shapes: Shapes,
    dtype: torch.dtype,
    tensor_of: Callable[[str], torch.Tensor],
    metadata: Mapping[str, str],
) -> Iterator[int]:
    """Write one file atomically and yield the size of each tensor in bytes."""
    with files.atomic_writer(path) as stream:
        stream.write(_head(shapes, dtype, metadata))
        for name in sorted(shapes):
            tensor = tensor_of(name)
            assert tensor.shape == shapes[name] and tensor.dtype == dtype, name
            content = tensor.contiguous().view(-1).view(torch.uint8).numpy()
            stream.write(content.data)
            yield content.nbytes


def write_peft_folder(
    folder: Path,
    shapes: Shapes,
    dtype: torch.dtype,
    tensor_of: Callable[[str], torch.Tensor],
    settings: Mapping[str, Any],
) -> Iterator[tuple[int, int]]:
    """Write the two files of a peft folder and yield (bytes done, total bytes)."""
    total, done = sum(map(math.prod, shapes.values())) * dtype.itemsize, 0
    for count in write_file(folder / PEFT_WEIGHTS, shapes, dtype, tensor_of, {"format": "pt"}):
        done += count
        yield done, total
    files.write_json(folder / PEFT_SETTINGS, settings)


def _head(shapes: Shapes, dtype: torch.dtype, metadata: Mapping[str, str]) -> bytes:
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    reached = 0
    for name in sorted(shapes):
        end = reached + math.prod(shapes[name]) * dtype.itemsize
        head[name] = {"dtype": NAMES[dtype], "shape": list(shapes[name]), "data_offsets": [reached, end]}
        reached = end
    content = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % ALIGNMENT)
    return len(content).to_bytes(8, "little") + content


def _shards(shapes: Shapes, item_bytes: int, most_bytes: int) -> list[list[str]]:
    """Distribute the names over files as huggingface_hub 2.4 does, in the order of `shapes`."""
    found: list[list[str]] = []
    names: list[str] = []
    filled = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * item_bytes
        if size > most_bytes:
            found.append([name])
            continue
        if filled + size > most_bytes:
            found.append(names)
            names, filled = [], 0
        names.append(name)
        filled += size
    return [*found, names] if names else found
