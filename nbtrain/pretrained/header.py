"""Reads the header of a safetensors file: its tensors, their formats and their offsets.

    size of the JSON (u64, little endian) | JSON {name: {dtype, shape, data_offsets}, __metadata__} | data

The data of all tensors is contiguous, so the file size alone reveals a truncated file or extra bytes. Source:
the description of the format in the repository huggingface/safetensors.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.text.amounts import size
from nbtrain.base.workspace import display

# Maximum header size in the safetensors library. A longer "header" means that the file has another format.
MOST_HEAD_BYTES = 100_000_000
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a safetensors file."""

    name: str
    dtype: str
    """Number format as safetensors spells it, such as F32 or BF16."""
    shape: tuple[int, ...]
    path: Path
    begin: int
    """Offset of the tensor's first byte in the file."""
    end: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    content: bytes
    """JSON text of the header, for computing a hash."""


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file. Raises CheckpointError for a damaged file or another format."""
    try:
        length = path.stat().st_size
        with path.open("rb") as stream:
            count = int.from_bytes(stream.read(8), "little")
            content = stream.read(count) if count <= MOST_HEAD_BYTES else b""
    except OSError as error:
        raise CheckpointError(f"{display(path)}: cannot be read: {error.strerror}.") from error
    if problem := pointer_problem_of(path):
        raise CheckpointError(f"{display(path)}: {problem}.")
    if length < 8 or count > MOST_HEAD_BYTES:
        raise _damaged(path, "is not a safetensors file: it does not start with the length of a header")
    if len(content) < count:
        raise _damaged(
            path, f"is truncated: the file has {size(length)}, but its header alone has {size(count)}"
        )
    try:
        described = json.loads(content)
        metadata = described.pop(METADATA, None) or {}
        tensors = {name: _tensor(path, name, entry, 8 + count) for name, entry in described.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged(path, "is not a safetensors file: its header is not valid JSON") from None
    _check_data(path, list(tensors.values()), 8 + count, length)
    return Header(tensors, metadata, content)


def _tensor(path: Path, name: str, entry: dict[str, Any], start: int) -> Tensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = entry["dtype"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(name)
    tensor = Tensor(name, str(dtype), shape, path, start + begin, start + end)
    wanted = ITEM_BYTES.get(tensor.dtype)
    if wanted is not None and tensor.bytes != wanted * tensor.count:
        raise _damaged(
            path,
            f"is damaged: according to its header, {name} has {tensor.bytes:,} bytes, but a {dtype} tensor "
            f"of shape {list(shape)} has {wanted * tensor.count:,}",
        )
    return tensor


def _check_data(path: Path, tensors: list[Tensor], start: int, length: int) -> None:
    reached = start
    for tensor in sorted(tensors, key=lambda one: (one.begin, one.end)):
        if tensor.begin != reached:
            raise _damaged(
                path,
                f"is damaged: according to its header, {tensor.name} does not follow the previous tensor",
            )
        reached = tensor.end
    if length < reached:
        raise _damaged(
            path,
            f"is truncated: the file has {size(length)}, but according to its header it must have "
            f"{size(reached)}",
        )
    if length > reached:
        raise _damaged(path, f"is damaged: {length - reached:,} bytes follow its last tensor")


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{display(path)}: {what}. Download or copy it again.")
