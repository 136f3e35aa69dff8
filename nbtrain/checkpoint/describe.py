"""What a checkpoint says of its model and its layout."""

from typing import Any

from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.schema import RunConfig

# DeepSpeed's constant for the layout of universal_checkpoint_info (deepspeed/checkpoint/constants.py).
UNIVERSAL_CHECKPOINT_VERSION = 0.2


def architecture(config: RunConfig) -> dict[str, Any]:
    """What decides the shapes and the meaning of the parameters, but for the vocabulary."""
    model = config.model
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "ffn_hidden_size": model.resolved_ffn_hidden_size,
        "max_position_embeddings": model.resolved_max_position_embeddings,
        "seq_length": model.seq_length,
    }


def layout(config: RunConfig) -> dict[str, Any]:
    """How the state is cut into files: DeepSpeed itself loads a checkpoint into the very same layout only."""
    parallel, precision = config.parallel, config.precision
    found: dict[str, Any] = {
        "data_parallel_size": parallel.data_parallel_size,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "ds_sequence_parallel_size": parallel.ds_sequence_parallel_size,
        "zero_stage": parallel.zero_stage,
        "weights": "fp32" if precision.autocast else precision.dtype,
    }
    if parallel.pipeline_parallel_size > 1:
        found["stage_layers"] = stage_layers(config)
    if parallel.zero_stage == 3:
        found["sub_group_size"] = parallel.sub_group_size
    for key in ("offload_optimizer", "offload_param"):
        if (place := getattr(parallel, key).device) != "none":
            found[key] = place
    return found
