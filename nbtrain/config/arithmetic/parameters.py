"""How many parameters a model has, by part, whole or as one rank's share.

    embedding   V h + p h                      tied with the output layer, counted once
    layer       h(3h) + 3h + h h + h           attention: query/key/value, projection
                h f + f + f h + h              MLP
                4 h                            two LayerNorms
    final norm  2 h

h hidden, f MLP width, p learned positions, V the padded vocabulary. With f = 4 h a layer is 12 h^2 + 13 h,
as in Megatron-LM (arXiv:2104.04473, section 5.1).
"""

from dataclasses import dataclass

from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.schema import RunConfig


@dataclass(frozen=True)
class Parameters:
    """Counts by part."""

    word_embeddings: int
    position_embeddings: int
    attention: int
    mlp: int
    layernorm: int

    @property
    def total(self) -> int:
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, int]:
        return dict(vars(self))


def count_parameters(config: RunConfig) -> Parameters:
    """Parameters of the whole model, tied embeddings once."""
    return _count(config, config.model.num_layers, has_embeddings=True, has_final_norm=True, tensor=1)


def count_stage_parameters(config: RunConfig, stage: int) -> Parameters:
    """Parameters on one rank of pipeline stage `stage`: its layers, cut by tensor parallelism.

    The first and the last stage each hold a copy of the tied word embeddings. Column-parallel biases are
    cut, row-parallel biases, LayerNorms and positions are on every rank (arXiv:1909.08053, section 3).
    Ulysses and Megatron's sequence parallelism cut no parameter. Which layers a stage has: stages.py.
    """
    last = config.parallel.pipeline_parallel_size - 1
    parameters = _count(
        config,
        stage_layers(config)[stage],
        has_embeddings=stage == 0,
        has_final_norm=stage == last,
        tensor=config.parallel.tensor_parallel_size,
    )
    if stage == last != 0:
        words = config.padded_vocab_size * config.model.hidden_size // config.parallel.tensor_parallel_size
        return Parameters(**{**parameters.to_dict(), "word_embeddings": words})
    return parameters


def largest_parameter(config: RunConfig) -> int:
    """Elements of the largest parameter on a tensor-parallel rank."""
    model, tensor = config.model, config.parallel.tensor_parallel_size
    hidden, ffn = model.hidden_size, model.resolved_ffn_hidden_size
    cut = max(config.padded_vocab_size * hidden, 3 * hidden * hidden, hidden * ffn) // tensor
    return max(cut, model.resolved_max_position_embeddings * hidden)


def _count(
    config: RunConfig, layers: int, has_embeddings: bool, has_final_norm: bool, tensor: int
) -> Parameters:
    model = config.model
    hidden, ffn = model.hidden_size, model.resolved_ffn_hidden_size
    return Parameters(
        word_embeddings=has_embeddings * config.padded_vocab_size * hidden // tensor,
        position_embeddings=has_embeddings * model.resolved_max_position_embeddings * hidden,
        attention=layers * ((4 * hidden * hidden + 3 * hidden) // tensor + hidden),
        mlp=layers * ((2 * hidden * ffn + ffn) // tensor + hidden),
        layernorm=layers * 4 * hidden + has_final_norm * 2 * hidden,
    )
