"""Size of a checkpoint on disk in bytes, for planner, preflight, supervisor and trainer.

    state         for each (pipeline, tensor) rank: weights, fp32 masters and two moments (with Muon, one
                  momentum per matrix), sharded across data-parallel ranks
    descriptions  names of tensors in each file, and the random state of every rank in each model file

The state is exact except for the padding of ZeRO's flat buffers (a few elements per group). The descriptions
are upper bounds, measured with torch 2.13 and DeepSpeed 0.19: tests/parity/runner.py compares both with every
checkpoint that the parity matrix writes.
"""

from nbtrain.config.arithmetic.adapters import adapter_sizes, trained_row_elements
from nbtrain.config.arithmetic.parameters import (
    block_matrices,
    count_stage_parameters,
    tensors_of_a_layer,
)
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig

# Space in addition to a checkpoint's data: for its manifest, DeepSpeed's recovery script and file system
# overhead.
SPARE_BYTES = 16 << 20

# States of the random generators of Python, NumPy and torch, pickled.
RANDOM_STATE_BYTES = 13_200
# State of the random generator for tensor-parallel dropout.
STREAM_STATE_BYTES = 5_600
# Overhead of a tensor in one of torch's zip archives: headers, its name twice, alignment to 64 bytes.
TENSOR_ENTRY_BYTES = 512
# A parameter's name and position in the flat buffers of an optimizer file.
MAPPING_ENTRY_BYTES = 192
# Other overhead of a file written by torch.save.
FILE_BYTES = 4_096
# Maximum number of tensors outside the blocks: word and position embeddings, weight and bias of the last
# norm, and an untied output layer.
TENSORS_BESIDE_LAYERS = 5


def weight_bytes(config: RunConfig) -> int:
    """Return the bytes of one weight in the model's number format."""
    return 4 if config.precision.dtype == "fp32" or config.precision.autocast else 2


def state_bytes(config: RunConfig) -> int:
    """Return the bytes of all tensors of one checkpoint, summed over all ranks.

    Each (pipeline, tensor) rank writes what it holds. LayerNorms, which all tensor-parallel ranks hold,
    therefore count once for each of these ranks. The last stage's copy of the tied word embedding has masters
    and moments but no separate weight: PipelineModule writes a tied layer once. ZeRO 3 writes the masters and
    no weights. A run with adapters writes only the adapters.
    """
    return _weight_state_bytes(config) + _optimizer_state_bytes(config)


def _weight_state_bytes(config: RunConfig) -> int:
    parallel = config.parallel
    if parallel.zero_stage == 3:
        return 0
    if config.lora is not None:
        return (_adapters(config) + _trained_rows(config, 1)) * weight_bytes(config)
    stages = parallel.pipeline_parallel_size
    held = [count_stage_parameters(config, stage) for stage in range(stages)]
    weights = sum(parameters.total for parameters in held)
    weights -= held[-1].word_embeddings if stages > 1 else 0
    return weights * weight_bytes(config) * parallel.tensor_parallel_size


def _optimizer_state_bytes(config: RunConfig) -> int:
    """Return the bytes of the optimizer's state: fp32 masters and fp32 moments.

    ZeRO 0 keeps no masters.
    """
    parallel, tensor = config.parallel, config.parallel.tensor_parallel_size
    if config.lora is not None:
        # Tied embeddings are on the last stage too.
        copies = min(parallel.pipeline_parallel_size, 2)
        stepped = _adapters(config) + _trained_rows(config, copies)
        return stepped * (12 if parallel.zero_stage else 8)
    stages = range(parallel.pipeline_parallel_size)
    stepped = sum(count_stage_parameters(config, stage).total for stage in stages)
    matrices = config.model.num_layers * sum(block_matrices(shape_of(config), tensor))
    moments = 2 * stepped - (matrices if config.optimizer.type == "Muon" else 0)
    masters = stepped if parallel.zero_stage else 0
    return 4 * (masters + moments) * tensor


def _adapters(config: RunConfig) -> int:
    """Return the number of elements of all adapters, over all (pipeline, tensor) ranks."""
    return config.model.num_layers * sum(adapter_sizes(config)) * config.parallel.tensor_parallel_size


def _trained_rows(config: RunConfig, tied_copies: int) -> int:
    """Return the number of elements that lora.trainable_token_indices trains, summed over all ranks."""
    copies = tied_copies if config.shape.tied else 2
    return trained_row_elements(config) * copies * config.parallel.tensor_parallel_size


def checkpoint_bytes(config: RunConfig) -> int:
    """Return the bytes of the files of one checkpoint, summed over all ranks."""
    return state_bytes(config) + _description_bytes(config)


def node_checkpoint_bytes(config: RunConfig, nodes: int) -> int:
    """Return the largest number of bytes that any of `nodes` nodes writes for a checkpoint.

    This is the space that a checkpoint needs in checkpoint.local_dir. ZeRO shards the optimizer's state
    across all data-parallel ranks. The weights are written only by the first replica (data-parallel rank 0),
    whose ranks may all be on one node. With ZeRO 0, the first replica writes the optimizer's state too.
    """
    whole = checkpoint_bytes(config)
    if config.parallel.zero_stage == 0:
        return whole
    share = _optimizer_state_bytes(config) / state_bytes(config)
    return int(whole * (1 - share + share / nodes))


def checkpoint_room_bytes(config: RunConfig) -> int:
    """Return the free bytes that the trainer requires before it begins a checkpoint."""
    return checkpoint_bytes(config) + SPARE_BYTES


def _description_bytes(config: RunConfig) -> int:
    parallel = config.parallel
    ranks, tensor, stages = config.world_size, parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    shape = shape_of(config)
    beside = TENSORS_BESIDE_LAYERS - shape.tied
    names = [tensors_of_a_layer(shape) * layers + beside for layers in stage_layers(config)]
    if config.lora is not None:
        # ZeRO 3 describes frozen parameters too.
        # Rows of trained tokens are in two modules at most.
        more = len(adapter_sizes(config)) * config.model.num_layers + 2
        names = [count + more for count in names]
    # ZeRO 3 writes a model file for each rank, the other ZeRO stages one for each (pipeline, tensor) rank.
    model_files = ranks if parallel.zero_stage == 3 else tensor * stages
    optimizer_files = ranks if parallel.zero_stage else 0
    # PipelineModule puts the weights into a file for each layer.
    layer_files = tensor * (config.model.num_layers + beside) if stages > 1 else 0
    random_state = RANDOM_STATE_BYTES + (STREAM_STATE_BYTES if tensor > 1 else 0)
    # ZeRO 0 keeps both moments and the step of each parameter as tensors of the model file.
    tensors = max(names) * (4 if parallel.zero_stage == 0 else 1)
    return (
        model_files * (FILE_BYTES + ranks * random_state + tensors * TENSOR_ENTRY_BYTES)
        + optimizer_files * (FILE_BYTES + max(names) * MAPPING_ENTRY_BYTES)
        + layer_files * FILE_BYTES
    )
