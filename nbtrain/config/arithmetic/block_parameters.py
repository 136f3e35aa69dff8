"""Parameters of one block on one tensor-parallel rank: the basis of all parameter counts.

model/layers.py creates the parameters of nbtrain's block. The parameters of a block from layer() are counted
in the trial of the code file (config/own_blocks.py).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from nbtrain.config.shape import OwnBlock, Shape

Part = Literal["attention", "mlp", "layernorm", "own"]


class BlockParameter(NamedTuple):
    """Parameters of the same size in one module of a block, on one tensor-parallel rank."""

    part: Part
    module: str
    """Name of the module that contains the parameters, as in model/names.py. "" in a block from layer()."""
    elements: int
    """Number of elements of each parameter."""
    copies: int
    """Number of parameters of this size in the module."""
    is_matrix: bool

    @property
    def total(self) -> int:
        """Number of elements of all parameters together."""
        return self.elements * self.copies


def block_parameters(shape: Shape, tensor: int) -> tuple[BlockParameter, ...]:
    """Return the parameters of one block of this model.

    If the user's layer() builds the blocks and its parameter counts are known, the parameters are those that
    layer() creates. Otherwise, they are the parameters of nbtrain's own block.
    """
    if shape.own_block is not None:
        return _counted(shape.own_block, tensor)
    return nbtrain_parameters(shape, tensor)


@lru_cache(maxsize=4096)
def nbtrain_parameters(shape: Shape, tensor: int) -> tuple[BlockParameter, ...]:
    """Return the parameters of nbtrain's block, in the order of model/layers.py.

    Matrices and the biases of column-parallel matrices are sharded. Row-parallel biases and norms are
    complete on every rank (arXiv:1909.08053, section 3). Key and value heads are sharded even if there are
    fewer groups of them than tensor-parallel ranks, as in Megatron-LM (parallel/query_groups.py).
    """
    return tuple(_of_nbtrain(shape, tensor))


def _of_nbtrain(shape: Shape, tensor: int) -> Iterator[BlockParameter]:
    hidden, query, opened = shape.hidden_size, shape.query_width // tensor, shape.ffn_hidden_size // tensor
    columns = (shape.query_width + 2 * shape.kv_width) // tensor
    openings, of_norm = 1 + shape.gated, 1 if shape.rmsnorm else 2
    yield BlockParameter("layernorm", "input_layernorm", hidden, of_norm, False)
    yield BlockParameter("attention", "query_key_value", hidden * columns, 1, True)
    if shape.qkv_bias:
        yield BlockParameter("attention", "query_key_value", columns, 1, False)
    if shape.qk_layernorm:
        yield BlockParameter("layernorm", "q_layernorm", shape.kv_channels, of_norm, False)
        yield BlockParameter("layernorm", "k_layernorm", shape.kv_channels, of_norm, False)
    yield BlockParameter("attention", "dense", query * hidden, 1, True)
    if shape.bias:
        yield BlockParameter("attention", "dense", hidden, 1, False)
    yield BlockParameter("layernorm", "post_attention_layernorm", hidden, of_norm, False)
    yield BlockParameter("mlp", "dense_h_to_4h", hidden * opened, openings, True)
    if shape.bias:
        yield BlockParameter("mlp", "dense_h_to_4h", opened, openings, False)
    yield BlockParameter("mlp", "dense_4h_to_h", opened * hidden, 1, True)
    if shape.bias:
        yield BlockParameter("mlp", "dense_4h_to_h", hidden, 1, False)


@lru_cache(maxsize=4096)
def _counted(own: OwnBlock, tensor: int) -> tuple[BlockParameter, ...]:
    """Return parameters with the same sums and maxima as a block from the user's layer().

    The trial records neither the size of each parameter nor their order. It is assumed that each matrix is as
    large as the largest sharded (or unsharded) parameter, with one smaller matrix for the rest, that sharded
    matrices come before unsharded ones, and that all vectors have the same size. Only ZeRO 3's padding and
    the parameters that two ranks share under ZeRO 2 depend on these assumptions.
    """
    found: list[BlockParameter] = []
    vectors = 0
    for total, matrices, largest in (
        (own.sharded // tensor, own.sharded_matrices // tensor, own.largest_sharded // tensor),
        (own.whole, own.whole_matrices, own.largest_whole),
    ):
        others = total - matrices
        if others > matrices and largest > matrices:
            # The largest parameter is not a matrix but, for example, a stack of matrices.
            found += _of_user(min(largest, others), 1, False)
            others -= min(largest, others)
            largest = matrices
        largest = max(min(largest, matrices), 1)
        found += _of_user(largest, matrices // largest, True)
        found += _of_user(matrices % largest, 1, True)
        vectors += others
    left = max(own.tensors - sum(parameter.copies for parameter in found), 1)
    each, longer = divmod(vectors, left)
    return (*found, *_of_user(each + 1, longer, False), *_of_user(each, left - longer, False))


def _of_user(elements: int, copies: int, is_matrix: bool) -> list[BlockParameter]:
    return [BlockParameter("own", "", elements, copies, is_matrix)] if elements and copies else []
