"""Number of parameters of a model, by part, for the whole model or one rank's share.

The formulas are in shape.py. With f = 4 h and biases a layer has 12 h^2 + 13 h parameters, as in
Megatron-LM (arXiv:2104.04473, section 5.1).
"""

from dataclasses import dataclass
from functools import lru_cache

from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters, by part of the model."""

    word_embeddings: int
    position_embeddings: int
    attention: int
    mlp: int
    layernorm: int
    output_layer: int = 0
    """Parameters of the output layer; 0 if it is tied, because the word embeddings are counted then."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def to_dict(self) -> dict[str, int]:
        """Return the counts by part, without parts that the model does not have: an untied output layer,
        learned positions.
        """
        optional = ("output_layer", "position_embeddings")
        return {part: count for part, count in vars(self).items() if part not in optional or count}


def count_parameters(config: RunConfig) -> Parameters:
    """Return the parameters of the whole model, counting tied embeddings once."""
    return count_layers(shape_of(config), config.model.num_layers, first=True, last=True, tensor=1)


def count_stage_parameters(config: RunConfig, stage: int) -> Parameters:
    """Return the number of parameters on one rank of pipeline stage `stage`: its layers, sharded by tensor
    parallelism.

    Ulysses, context parallelism and Megatron's sequence parallelism cut no parameter. Which layers a stage
    has: stages.py.
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
    """Return the parameters of one rank with `layers` layers; `first` and `last` include the parameters of
    the model's first and last part.

    If stages are cut, the first and the last one each hold a copy of tied word embeddings. Column-parallel
    biases are cut, row-parallel biases, norms and positions are on every rank (arXiv:1909.08053, section 3).
    Fewer groups of key and value heads than tensor-parallel ranks are cut too, as in Megatron-LM
    (parallel/query_groups.py).
    """
    hidden, ffn, bias = shape.hidden_size, shape.ffn_hidden_size, shape.bias
    attention_weights, mlp_weights = block_matrices(shape, tensor)
    attention = attention_weights + bias * hidden + shape.qkv_bias * _qkv_columns(shape, tensor)
    opened = (2 if shape.gated else 1) * ffn
    mlp = mlp_weights + bias * (opened // tensor + hidden)
    norms = 2 * shape.norm_parameters + shape.head_norm_parameters
    if (own := shape.own_block) is not None:
        # The file says what a block has in all, and not what is attention.
        mlp = own.on_rank(tensor) - attention - norms
        if mlp < 0:
            attention, norms, mlp = 0, 0, own.on_rank(tensor)
    words = shape.output_weights // tensor
    return Parameters(
        word_embeddings=words if first or (last and shape.tied) else 0,
        position_embeddings=first * shape.learned_positions * hidden,
        attention=layers * attention,
        mlp=layers * mlp,
        layernorm=layers * norms + last * shape.norm_parameters,
        output_layer=words if last and not shape.tied else 0,
    )


def block_matrices(shape: Shape, tensor: int) -> tuple[int, int]:
    """Return the number of elements in one block's matrices on one rank, as (attention, MLP)."""
    hidden = shape.hidden_size
    attention = hidden * _qkv_columns(shape, tensor) + shape.query_width * hidden // tensor
    if (own := shape.own_block) is not None:
        matrices = own.matrices_on_rank(tensor)
        attention = min(attention, matrices)
        return attention, matrices - attention
    return attention, shape.mlp_weights // tensor


def _qkv_columns(shape: Shape, tensor: int) -> int:
    return (shape.query_width + 2 * shape.kv_width) // tensor


def tensors_of_a_layer(shape: Shape) -> int:
    """Return the number of parameter tensors of a layer: four matrices and a gate, biases, and norms."""
    if shape.own_block is not None:
        return shape.own_block.tensors
    biases = shape.qkv_bias + shape.bias * (3 + shape.gated)
    return 4 + shape.gated + biases + shape.norms_of_a_layer * (1 if shape.rmsnorm else 2)


def largest_parameter(config: RunConfig) -> int:
    """Return the elements of the largest parameter on a tensor-parallel rank."""
    return largest_of(shape_of(config), config.parallel.tensor_parallel_size)


def largest_of(shape: Shape, tensor: int) -> int:
    """Return the elements of the largest parameter on one of `tensor` tensor-parallel ranks."""
    hidden, columns = shape.hidden_size, shape.query_width + 2 * shape.kv_width
    cut = max(shape.output_weights, hidden * columns, hidden * shape.ffn_hidden_size) // tensor
    if (own := shape.own_block) is not None:
        cut = max(shape.output_weights // tensor, own.largest_sharded // tensor, own.largest_whole)
    return max(cut, shape.learned_positions * hidden)
