"""One pipeline stage of a setup: its layers, and its parameters as sharded by tensor parallelism.

Parameters are counted in DeepSpeed's two parameter groups, because each group has separate flat buffers:
`decay` (matrices and embeddings) and `no_decay` (biases and norms; model/names.py), or with Muon `matrices`
(those of the blocks) and `others`. ZeRO 3 partitions each parameter separately, so the size of every
parameter is needed.
"""

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from nbtrain.config.arithmetic.block_parameters import block_parameters
from nbtrain.config.arithmetic.parameters import Parameters, count_layers, tensors_of_a_layer
from nbtrain.config.shape import Shape
from nbtrain.planner.setup.setup import Setup

# Kinds of parameters: matrices of the blocks; embeddings and output layer; biases and norms.
MATRIX, EMBEDDING, VECTOR = "matrix", "embedding", "vector"


class Stage(NamedTuple):
    """The part of a model that one rank of a pipeline stage holds."""

    number: int
    layers: int
    is_first: bool
    is_last: bool
    parameters: Parameters
    decay: int
    """Elements of matrices and embeddings."""
    no_decay: int
    """Elements of biases and norms."""
    blocks: int
    """Elements of the blocks' matrices."""
    tensors: int
    """Number of parameter tensors."""
    window_layers: int = 0
    """Number of layers with sliding-window attention."""

    def groups(self, muon: bool) -> tuple[int, int]:
        """Return the number of elements in each of the two parameter groups that are passed to DeepSpeed.

        The groups are `decay` and `no_decay`, or with Muon `matrices` and `others`.
        """
        return (self.blocks, self.elements - self.blocks) if muon else (self.decay, self.no_decay)

    @property
    def elements(self) -> int:
        """Number of parameter elements on the rank, in both groups."""
        return self.decay + self.no_decay

    @property
    def matrices(self) -> int:
        """Elements of the matrices in matrix products, which autocast casts to 16 bits."""
        counted = self.parameters
        # Embeddings are only looked up, but tied embeddings are also the last stage's output matrix.
        output = counted.output_layer or (counted.word_embeddings if self.is_last else 0)
        return counted.attention + counted.mlp + output


def stage_of(setup: Setup, index: int) -> Stage:
    """Return the pipeline stage with this index, counted from 0."""
    stages, pattern = setup.layers_by_stage, setup.shape.window_layers
    found = _stage(setup.shape, index, stages[index], len(stages), setup.tensor_parallel_size)
    if not pattern:
        return found
    first = sum(stages[:index])
    windows = sum(pattern[first : first + stages[index]])
    return found._replace(window_layers=windows) if windows else found


def window_layers_by_stage(setup: Setup) -> list[int]:
    """Return the number of layers with sliding-window attention in each stage."""
    stages, pattern = setup.layers_by_stage, setup.shape.window_layers
    if not pattern:
        return [0] * len(stages)
    ends = list(accumulate(stages))
    return [sum(pattern[end - layers : end]) for layers, end in zip(stages, ends)]


@lru_cache(maxsize=4096)
def _stage(shape: Shape, index: int, layers: int, stages: int, tensor: int) -> Stage:
    first, last = index == 0, index == stages - 1
    parameters = count_layers(shape, layers, first, last, tensor)
    sizes = _sizes(shape, layers, first, last, tensor)
    no_decay, blocks = (
        sum(size * copies for size, copies, kind in sizes if kind == wanted) for wanted in (VECTOR, MATRIX)
    )
    # For a user's own block, the number of tensors is known and their sizes are assumed
    # (block_parameters.py).
    listed = sum(one.copies for one in block_parameters(shape, tensor))
    tensors = sum(copies for _, copies, _ in sizes) + layers * (tensors_of_a_layer(shape) - listed)
    decay = parameters.total - no_decay
    return Stage(index, layers, first, last, parameters, decay, no_decay, blocks, tensors)


@lru_cache(maxsize=4096)
def shares(
    shape: Shape, layers: int, first: bool, last: bool, tensor: int, ranks: int, muon: bool = False
) -> tuple[int, int]:
    """Return (elements in the first group, in the second group) that a rank holds under ZeRO 3.

    Each parameter is padded to a multiple of the ranks (DeepSpeed 0.19.8, partition_parameters.py,
    _aligned_size).
    """
    found = [0, 0]
    for size, copies, kind in _sizes(shape, layers, first, last, tensor):
        found[kind != MATRIX if muon else kind == VECTOR] += copies * -(-size // ranks)
    return found[0], found[1]


@lru_cache(maxsize=4096)
def touched(shape: Shape, tensor: int, ranks: int, parts: tuple[int, int]) -> tuple[int, ...]:
    """Return, for each rank, the number of elements in the parameters that overlap its ZeRO shard.

    All elements of these parameters are counted, also those outside the shard. `parts` is the number of
    elements that a rank holds in the flat buffers of `decay` and of `no_decay`. The setup must not have a
    pipeline.
    """
    found = [0] * ranks
    for sizes, part in zip(_in_order(shape, tensor), parts):
        ends = list(accumulate(sizes))
        begins = [0, *ends[:-1]]
        for rank in range(ranks):
            first, last = bisect_right(ends, rank * part), bisect_left(begins, (rank + 1) * part)
            found[rank] += sum(sizes[first:last])
    return tuple(found)


def matrices_of(setup: Setup, stage: Stage) -> list[tuple[int, int]]:
    """Return [(elements, number of matrices of this size)] for a stage's block matrices on one rank."""
    ends = stage.is_first, stage.is_last
    sizes = _sizes(setup.shape, stage.layers, *ends, setup.tensor_parallel_size)
    return [(size, copies) for size, copies, kind in sizes if kind == MATRIX]


def _in_order(shape: Shape, tensor: int) -> tuple[list[int], list[int]]:
    """Return the sizes of a model's parameters in `decay` and in `no_decay`, in the model's order."""
    embeddings = [shape.output_weights // tensor]
    if shape.learned_positions:
        embeddings.append(shape.learned_positions * shape.hidden_size)
    matrices, vectors = (
        [
            parameter.elements
            for parameter in block_parameters(shape, tensor)
            if parameter.is_matrix == wanted
            for _ in range(parameter.copies)
        ]
        for wanted in (True, False)
    )
    norm = [shape.hidden_size] * (1 if shape.rmsnorm else 2)
    output = [] if shape.tied else [shape.output_weights // tensor]
    return embeddings + matrices * shape.num_layers + output, vectors * shape.num_layers + norm


def _sizes(shape: Shape, layers: int, first: bool, last: bool, tensor: int) -> list[tuple[int, int, str]]:
    """Return [(elements, number of parameters of this size, kind)] for a rank of a stage.

    The elements add up to count_layers().total.
    """
    found = [
        (one.elements, one.copies * layers, MATRIX if one.is_matrix else VECTOR)
        for one in block_parameters(shape, tensor)
    ]
    if last:
        found.append((shape.hidden_size, 1 if shape.rmsnorm else 2, VECTOR))
    words = shape.output_weights // tensor
    if first or (last and shape.tied):
        found.append((words, 1, EMBEDDING))
    if last and not shape.tied:
        found.append((words, 1, EMBEDDING))
    if first and shape.learned_positions:
        found.append((shape.learned_positions * shape.hidden_size, 1, EMBEDDING))
    return found
