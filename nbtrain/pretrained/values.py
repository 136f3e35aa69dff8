"""Checks for NaN and Inf in a folder's weights, and for a tied output layer that differs from the embedding.

Every byte is read once, in chunks, without torch. NaN and Inf are the numbers in which all bits of the
exponent are set.
"""

from collections.abc import Iterator

import numpy as np

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.pretrained.header import Tensor
from nbtrain.pretrained.model import PretrainedModel
from nbtrain.pretrained.tensors import OUTPUT

PIECE_BYTES = 64 << 20
# {number format: (unsigned integer of the same size, bits of the exponent)}
EXPONENTS = {"F32": ("<u4", 0x7F80_0000), "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00)}


def check_values(model: PretrainedModel) -> Iterator[int]:
    """Check all values, and yield the size of each chunk that was read.

    Raises CheckpointError at the first invalid tensor.
    """
    for name, tensor in model.tensors.items():
        kind, exponent = EXPONENTS[tensor.dtype]
        bits = np.dtype(kind).type(exponent)
        for piece in _pieces(tensor, kind):
            if bool(((piece & bits) == bits).any()):
                raise CheckpointError(
                    f"{display(tensor.path)}: {name} contains NaN or Inf, so a run that starts from it would "
                    "not have a finite loss. Get another copy of the model."
                )
            yield piece.nbytes
    if model.twin is not None:
        yield from _check_twin(model, model.twin)


def _check_twin(model: PretrainedModel, twin: Tensor) -> Iterator[int]:
    words = model.tensors[model.map.pieces["word_embeddings.weight"][0].tensor]
    kind = EXPONENTS[twin.dtype][0]
    same = twin.dtype == words.dtype and twin.shape == words.shape
    for ours, theirs in zip(_pieces(words, kind), _pieces(twin, kind)) if same else ():
        same = same and bool(np.array_equal(ours, theirs))
        yield theirs.nbytes
    if not same:
        raise CheckpointError(
            f"{display(twin.path)}: {OUTPUT} differs from the word embedding, but according to config.json "
            "they are tied. If the output layer has its own matrix, set tie_word_embeddings to false in "
            "config.json."
        )


def _pieces(tensor: Tensor, kind: str) -> Iterator[np.ndarray]:
    size = np.dtype(kind).itemsize
    with tensor.path.open("rb") as stream:
        stream.seek(tensor.begin)
        left = tensor.bytes
        while left:
            content = stream.read(min(left, PIECE_BYTES // size * size))
            if not content:
                raise CheckpointError(
                    f"{display(tensor.path)}: the file became shorter while it was read. Wait until no other "
                    "program writes it, and run the command again."
                )
            left -= len(content)
            yield np.frombuffer(content, kind)
