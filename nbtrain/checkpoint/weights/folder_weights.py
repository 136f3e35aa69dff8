"""The parameters in a model's folder by canonical name, readable like a checkpoint.

    weights = FolderWeights(open_model(path), vocab_size)
    weights.read(name, "fp32", TensorPart(1, 4, dim=0), 0, 1000)    as CheckpointStore.read

Files are mapped into memory, and only the requested rows and columns are copied. A slice of columns still
touches every page of its tensor, but those pages belong to the file and are released when memory runs short.
Apart from them, a rank allocates only the elements that it requests.
"""

import math
from functools import cached_property
from typing import Any

import torch
from safetensors import safe_open

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.weights.store import MASTER, WHOLE, StoredParameter, TensorPart
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.pretrained.model import PretrainedModel
from nbtrain.pretrained.tensors import Piece

Range = tuple[int, int]
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# At most this many elements are copied at one time: 64 MiB of fp32.
PIECE_ELEMENTS = 16 << 20


class FolderWeights:
    """The parameters of a model's folder. The vocabulary's matrices have `vocab_size` rows; rows that the
    folder lacks are the mean of its rows.
    """

    def __init__(self, model: PretrainedModel, vocab_size: int):
        self.model = model
        self.folder = model.path
        self.vocab_size = vocab_size
        self._files: dict[Any, Any] = {}
        self._means: dict[str, torch.Tensor] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Format of the folder's tensors; fp32 if they have several formats."""
        kinds = {DTYPES[tensor.dtype] for tensor in self.model.tensors.values()}
        return kinds.pop() if len(kinds) == 1 else torch.float32

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shapes of the unsharded parameters by name, without vocabulary padding, in the model's order."""
        return {
            name: StoredParameter(
                name, (self.vocab_size, *shape[1:]) if name in OF_VOCABULARY else shape, None, 0
            )
            for name, shape in self.model.map.shapes.items()
        }

    def read(
        self,
        name: str,
        state: str = MASTER,
        part: TensorPart = WHOLE,
        start: int = 0,
        count: int | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Return elements [start, start + count) of a part of a parameter, like CheckpointStore.read.

        Raises CheckpointError for NaN and Inf.
        """
        assert state == MASTER, "a folder has no moments"
        shape = self.parameters[name].shape
        rank, size, dim = part if part.dim is not None else WHOLE
        whole_rows = rows or shape[0]
        width = torch.Size(shape[1:]).numel()
        columns = (0, width)
        if dim == 1:
            width //= size
            columns = (rank * width, (rank + 1) * width)
            size, rank = 1, 0
        total = whole_rows * width // size
        count = total - start if count is None else count
        # Sharded along the first dimension, the parts are consecutive in the whole tensor.
        first = rank * total + start
        end = min(first + count, shape[0] * width)
        if first >= end:
            return torch.empty(0)
        top, bottom = first // width, -(-end // width)
        block = self.block(name, (top, bottom), columns)
        return block.flatten()[first - top * width : end - top * width]

    def block(self, name: str, rows: Range, columns: Range | None = None) -> torch.Tensor:
        """Return a copy of a range of rows of an unsharded parameter, and of a range of columns, in fp32."""
        shape = self.parameters[name].shape
        columns = (columns or (0, shape[1])) if len(shape) > 1 else None
        out = torch.empty(rows[1] - rows[0], *(() if columns is None else (columns[1] - columns[0],)))
        stored = self.model.map.shapes[name][0]
        for piece in self.model.map.pieces[name]:
            first, end = max(rows[0], piece.first), min(rows[1], piece.first + piece.count)
            if first < end:
                found = self._piece(piece, (first - piece.first, end - piece.first), columns)
                out[first - rows[0] : end - rows[0]] = found
        if rows[1] > stored:
            mean = self._mean(name)
            out[max(stored - rows[0], 0) :] = mean if columns is None else mean[columns[0] : columns[1]]
        # aminmax allocates no second tensor, and returns NaN if any number is NaN.
        if out.numel() and not all(map(math.isfinite, map(float, torch.aminmax(out)))):
            raise CheckpointError(
                f"{display(self.folder)}: {name} holds NaN or Inf, so a model that starts from it would have "
                "no valid loss. Get another copy of the model."
            )
        return out

    def _piece(self, piece: Piece, rows: Range, columns: Range | None) -> torch.Tensor:
        """Return rows and columns of a tensor in the file, as a view if possible."""
        view = self._slice(piece.tensor)
        there = slice(piece.there + rows[0], piece.there + rows[1])
        if columns is None:
            return view[there]
        across = slice(*columns)
        return view[across, there].T if piece.transposed else view[there, across]

    def _mean(self, name: str) -> torch.Tensor:
        """Return the mean row of one of the folder's parameters."""
        if name not in self._means:
            rows, width = self.model.map.shapes[name]
            total = torch.zeros(width, dtype=torch.float64)
            step = max(PIECE_ELEMENTS // width, 1)
            for top in range(0, rows, step):
                total += self.block(name, (top, min(top + step, rows))).sum(0, dtype=torch.float64)
            self._means[name] = (total / rows).float()
        return self._means[name]

    def _slice(self, name: str) -> Any:
        """Return a tensor of the file that can be sliced without reading it completely."""
        tensor = self.model.tensors[name]
        if tensor.path not in self._files:
            self._files[tensor.path] = safe_open(tensor.path, framework="pt", device="cpu")
        return self._files[tensor.path].get_slice(tensor.name)
