"""Number of parameters of a model, by part, for the whole model or one rank's share.

The formulas are in shape.py, and each parameter of a block is in block_parameters.py. With f = 4 h and biases
a layer has 12 h^2 + 13 h parameters, as in Megatron-LM (arXiv:2104.04473, section 5.1).
"""

from dataclasses import dataclass
from functools import lru_cache

from nbtrain.config.arithmetic.block_parameters import block_parameters, nbtrain_parameters
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape


@dataclass(frozen=True)
class Parameters:
    """Parameter counts by part of the model."""

    word_embeddings: int
    position_embeddings: int
    attention: int
    mlp: int
    layernorm: int
    output_layer: int = 0
    """Parameters of the output layer. 0 if it is tied, because the word embeddings are counted already."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def to_dict(self) -> dict[str, int]:
        """Return the counts by part.

        Parts that the model does not have, such as an untied output layer or learned positions, are omitted.
        """
        optional = ("output_layer", "position_embeddings")
        return {part: count for part, count in vars(self).items() if part not in optional or count}


def count_parameters(config: RunConfig) -> Parameters:
    """Return the parameter counts of the whole model, with tied embeddings counted once."""
    return count_layers(shape_of(config), config.model.num_layers, first=True, last=True, tensor=1)


def count_stage_parameters(config: RunConfig, stage: int) -> Parameters:
    """Return the parameter counts of one rank of pipeline stage `stage`.

    The stage's layers are counted, as sharded by tensor parallelism. Ulysses, context parallelism and
    Megatron's sequence parallelism do not shard parameters. stages.py decides which layers a stage has.
    """
    last = config.parallel.pipeline_parallel_size - 1
    return count_layers(
        shape_of(config),
        stage_layers(config)[stage],
        first=stage == 0,
        last=stage == last,
        tensor=config.parallel.tensor_parallel_size,
    )


@lru_cache(maxsize=4096)
def count_layers(shape: Shape, layers: int, first: bool, last: bool, tensor: int) -> Parameters:
    """Return the parameter counts of one rank with `layers` layers.

    `first` and `last` say whether the rank is on the first and on the last pipeline stage. In a pipeline, the
    first and the last stage each hold a copy of tied word embeddings. `tensor` is the number of
    tensor-parallel ranks, each of which has complete norms and positions; block_parameters.py says which
    parameters of a block are sharded.
    """
    sums = {"attention": 0, "mlp": 0, "layernorm": 0, "own": 0}
    for parameter in block_parameters(shape, tensor):
        sums[parameter.part] += parameter.total
    attention, mlp, norms = sums["attention"], sums["mlp"], sums["layernorm"]
    if shape.own_block is not None:
        # The trial counts a block as a whole and does not separate attention from the rest.
        ours = nbtrain_parameters(shape, tensor)
        vectors = sum(one.total for one in ours if one.part == "attention" and not one.is_matrix)
        attention = block_matrices(shape, tensor)[0] + vectors
        norms = sum(one.total for one in ours if one.part == "layernorm")
        mlp = sums["own"] - attention - norms
        if mlp < 0:
            attention, norms, mlp = 0, 0, sums["own"]
    words = shape.output_weights // tensor
    return Parameters(
        word_embeddings=words if first or (last and shape.tied) else 0,
        position_embeddings=first * shape.learned_positions * shape.hidden_size,
        attention=layers * attention,
        mlp=layers * mlp,
        layernorm=layers * norms + last * shape.norm_parameters,
        output_layer=words if last and not shape.tied else 0,
    )


def block_matrices(shape: Shape, tensor: int) -> tuple[int, int]:
    """Return the number of elements in one block's matrices on one rank, as (attention, MLP)."""
    matrices = sum(one.total for one in block_parameters(shape, tensor) if one.is_matrix)
    ours = nbtrain_parameters(shape, tensor)
    attention = sum(one.total for one in ours if one.part == "attention" and one.is_matrix)
    attention = min(attention, matrices)
    return attention, matrices - attention


def tensors_of_a_layer(shape: Shape) -> int:
    """Return the number of parameter tensors in a transformer block; a weight and its bias count as two."""
    if shape.own_block is not None:
        return shape.own_block.tensors
    return sum(parameter.copies for parameter in block_parameters(shape, 1))


def largest_parameter(config: RunConfig) -> int:
    """Return the number of elements in the largest parameter on a tensor-parallel rank."""
    return largest_of(shape_of(config), config.parallel.tensor_parallel_size)


def largest_of(shape: Shape, tensor: int) -> int:
    """Return the number of elements in the largest parameter on one of `tensor` tensor-parallel ranks."""
    if (own := shape.own_block) is not None:
        of_block = max(own.largest_sharded // tensor, own.largest_whole)
    else:
        of_block = max(parameter.elements for parameter in block_parameters(shape, tensor))
    return max(shape.output_weights // tensor, shape.learned_positions * shape.hidden_size, of_block)
