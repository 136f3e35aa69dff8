"""Full parameters of a checkpoint, a folder or a tree, in the format in which they are to be written.

    weights = FullParameters(CheckpointStore(folder), torch.bfloat16)
    weights.full("layers.0.attention.dense.weight")    [h, h], bf16; the vocabulary without padding

In the format of training, they are the weights that the run computed with; in fp32, they are the optimizer's
masters.
"""

from collections import OrderedDict

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.pretrained.megatron_tree import MegatronWeights
from nbtrain.checkpoint.weights.masters import Weights
from nbtrain.checkpoint.weights.store import MASTER, CheckpointStore
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.pretrained.tensors import Piece, TensorMap

# The packed query, key and value parameter is kept in memory: it becomes three tensors, which are not written
# one after the other.
KEPT = 2


class FullParameters:
    """The full parameters of `source` in `dtype`; None means the format in which they were trained."""

    def __init__(self, source: Weights | MegatronWeights, dtype: torch.dtype | None = None):
        self.source = source
        self.trained_in = source.dtype
        self.dtype = dtype or source.dtype
        self.vocab_size = source.vocab_size
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()

    def full(self, name: str) -> torch.Tensor:
        """Return one parameter, unsharded, in the format `dtype`.

        Raises CheckpointError if the parameter has a NaN or Inf in this format.
        """
        if name not in self._kept:
            self._kept[name] = self._read(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def _read(self, name: str) -> torch.Tensor:
        if isinstance(self.source, CheckpointStore) and self.dtype == self.trained_in:
            found = self.source.weights(name)
        else:
            shape = self.source.parameters[name].shape
            found = self.source.read(name, MASTER).view(shape).to(self.dtype)
        if not bool(torch.isfinite(found).all()):
            what = {torch.float16: " in fp16, whose largest number is 65,504. Use another format, or another"}
            raise CheckpointError(
                f"{display(self.source.folder)}: {name} holds NaN or Inf"
                f"{what.get(self.dtype, ', so the model is unusable. Use another')} step."
            )
        return found[: self.vocab_size] if name in OF_VOCABULARY else found

    def tensor(self, known: TensorMap, name: str) -> torch.Tensor:
        """Return the tensor `name` of an exported folder; `known` lists the rows that it consists of."""
        users, shape = known.users[name], known.tensors[name]
        parameter, piece = users[0]
        if piece == Piece(0, known.shapes[parameter][0], name) and shape == known.shapes[parameter]:
            return self.full(parameter)
        out = torch.empty(shape, dtype=self.dtype)
        for parameter, piece in users:
            rows = self.full(parameter)[piece.first : piece.first + piece.count]
            there = slice(piece.there, piece.there + piece.count)
            if piece.transposed:
                out[:, there] = rows.T
            else:
                out[there] = rows
        return out
