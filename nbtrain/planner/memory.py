"""Peak memory of one rank, by part, for every pipeline stage: on its device, in host memory and on NVMe.

    weights      in the format of the products; under autocast fp32 and a 16-bit copy of the matrices; with
                 hpZ a second copy, cut inside each machine
    gradients    fp32 sums of 16-bit micro-batch gradients; DeepSpeed's BF16_Optimizer (bf16 weights with
                 ZeRO 1) keeps both
    optimizer    fp32 master weights and Adam's two moments: 12 bytes a parameter (fp32 with ZeRO 0: 8)
    activations  s b h (34 - 2 if there is no dropout) per layer in 16 bit, cut by tensor and sequence
                 parallelism and Ulysses; without scores and the MLP's activation with selective
                 recomputation, only layer inputs with full recomputation; times the micro batches in flight
    logits       one chunk of the linear + cross entropy, and its fp32 gradient of the word embeddings
    workspace    DeepSpeed's communication buffers, and the memory of CUDA and the libraries

ZeRO divides optimizer (1), gradients (2) and weights (3) by the data-parallel ranks, Ulysses ranks included:
arXiv:1910.02054, section 5. Offloading moves them to host memory or NVMe; gradients go with the optimizer,
whose step is made there. Activations: arXiv:2205.05198, sections 4.1 and 5 (equations 1, 2, 4 and 5), without
the attention scores, which flash attention does not keep. Pipeline: stage k of p holds p - k micro batches
(1F1B, arXiv:2104.04473, section 2.2), and the output that it has sent on for each of them.

Compared with published peaks, with the same parts counted for the trainer that reached them
(tests/planner/test_memory.py): 27.95 GiB for 28.07 of allocated memory (125M). The count is 90 % (125M, 31
GB), 78 % (1.3B, 39 GB) and 73 % (13B, 70 GB) of peaks of the whole device: the free memory that torch's
allocator keeps between its blocks is not estimated, and neither is the effect of FPDT and FP8.
"""

import os
from dataclasses import dataclass, field

from nbtrain.config.arithmetic.checkpoint_bytes import optimizer_bytes_per_parameter, weight_bytes
from nbtrain.config.arithmetic.devices import GIB, find_device
from nbtrain.config.arithmetic.parameters import count_stage_parameters
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.deepspeed import bucket_elements, nvme_buffer_elements
from nbtrain.config.schema import RunConfig

# Assumed for CUDA's context, cuBLAS workspaces and NCCL channels together.
GPU_RUNTIME_BYTES = 1 * GIB
# A CPU rank's resident memory beside the counted parts: measured with gpt-tiny, 804 MiB in all, 370 counted.
CPU_RUNTIME_BYTES = 434 * 2**20
# DeepSpeed's default (offload_param.max_in_cpu): parameters that stay in host memory beside those on NVMe.
NVME_PARAMETERS_IN_CPU = 1_000_000_000
# What the optimizer's step holds of a sub-group whose state is on NVMe: masters, gradients and two moments.
NVME_OPTIMIZER_TENSORS = 4

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
HOST_PARTS = ("weights", "gradients", "optimizer", "buffers", "snapshot")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by part on the fullest rank, and what its device has."""

    parts: dict[str, int]
    """Bytes for each of PARTS."""
    stage: int
    """The pipeline stage that needs most."""
    device_bytes: int | None
    """Memory that one rank may take; None if the device is not known."""
    device: str
    """Where device_bytes comes from, e.g. "A100-40GB"."""
    host_parts: dict[str, int] = field(default_factory=dict)
    """Bytes in host memory for each of HOST_PARTS, on the same rank; on device cpu they are in `parts`."""
    nvme_bytes: int = 0
    """Bytes in files on NVMe, of the same rank."""
    host_bytes: int | None = None
    """Host memory that one rank may take; None if it is not known."""

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def total_host_bytes(self) -> int:
        return sum(self.host_parts.values())

    @property
    def fits_host(self) -> bool | None:
        """Whether a GPU rank's share of host memory suffices; None if that is not known."""
        return None if self.host_bytes is None else self.total_host_bytes <= self.host_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the parts fit the device; None if the device is not known."""
        return None if self.device_bytes is None else self.total_bytes <= self.device_bytes


def estimate_memory(config: RunConfig) -> MemoryEstimate:
    """The fullest rank of a run."""
    stages = range(config.parallel.pipeline_parallel_size)
    by_stage = {stage: stage_memory(config, stage) for stage in stages}
    fullest = max(stages, key=lambda stage: sum(by_stage[stage].values()))
    device_bytes, device = _device(config)
    resources = config.resources
    of_node = resources.memory_per_node_bytes if resources.device == "gpu" else None
    return MemoryEstimate(
        by_stage[fullest],
        fullest,
        device_bytes,
        device,
        host_memory(config, fullest),
        nvme_bytes(config, fullest),
        of_node // config.ranks_per_node if of_node else None,
    )


def stage_memory(config: RunConfig, stage: int) -> dict[str, int]:
    """Bytes by part on the device of one rank of a pipeline stage."""
    state = _model_state(config, stage)
    parts = {part: size if place == "device" else 0 for part, (size, place) in state.items()}
    if config.parallel.zero_hpz:
        # hpZ's parameters, cut over the ranks of a machine.
        copied = count_stage_parameters(config, stage).total * weight_bytes(config)
        parts["weights"] += copied // config.zero_hpz_partition_size
    parts["activations"] = activation_bytes(config, stage)
    parts["logits"] = logits_bytes(config, stage)
    parts["workspace"] = _workspace(config, stage)
    if config.resources.device == "cpu":
        # Host memory is the device's own.
        for part, (size, place) in state.items():
            parts[part] += size if place == "cpu" else 0
        parts["workspace"] += _nvme_buffers(config, stage) + _snapshot(config, stage)
    return parts


def host_memory(config: RunConfig, stage: int) -> dict[str, int]:
    """Bytes by part in the host memory of one GPU rank of a pipeline stage; all 0 on device: cpu."""
    if config.resources.device == "cpu":
        return dict.fromkeys(HOST_PARTS, 0)
    state = _model_state(config, stage)
    return {
        **{part: size if place == "cpu" else 0 for part, (size, place) in state.items()},
        "buffers": _nvme_buffers(config, stage),
        "snapshot": _snapshot(config, stage),
    }


def nvme_bytes(config: RunConfig, stage: int) -> int:
    """Bytes in files of one rank of a pipeline stage."""
    return sum(size for size, place in _model_state(config, stage).values() if place == "nvme")


def _model_state(config: RunConfig, stage: int) -> dict[str, tuple[int, str]]:
    """{part: (bytes, "device", "cpu" or "nvme")}."""
    parallel, zero = config.parallel, config.parallel.zero_stage
    parameters = count_stage_parameters(config, stage)
    count, ranks = parameters.total, parallel.data_axis_size
    weights = count * weight_bytes(config)
    if config.precision.autocast:
        # Autocast keeps the cast matrices until the end of the forward pass.
        weights += 2 * (parameters.attention + parameters.mlp + parameters.word_embeddings)
    optimizer = count * optimizer_bytes_per_parameter(config)
    gradients = count * (6 if is_bf16_optimizer(config) else 4)
    optimizer_place, weights_place = (
        "device" if offload.device == "none" else offload.device
        for offload in (parallel.offload_optimizer, parallel.offload_param)
    )
    # Stage 1 reduces gradients after the last micro batch; until then they are on the device.
    gradients_place = "cpu" if optimizer_place != "device" and zero >= 2 else "device"
    return {
        "weights": (weights // (ranks if zero == 3 else 1), weights_place),
        "gradients": (gradients // (ranks if zero >= 2 else 1), gradients_place),
        "optimizer": (optimizer // (ranks if zero >= 1 else 1), optimizer_place),
    }


def is_bf16_optimizer(config: RunConfig) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer: ZeRO 1, bf16 weights, fp32 sums, nothing offloaded."""
    parallel, precision = config.parallel, config.precision
    bf16 = precision.dtype == "bf16" and not precision.autocast
    return bf16 and parallel.zero_stage == 1 and parallel.offload_optimizer.device == "none"


def _nvme_buffers(config: RunConfig, stage: int) -> int:
    """Host memory through which state on NVMe passes, and the parameters that stay there beside it."""
    parallel, found = config.parallel, 0
    share = count_stage_parameters(config, stage).total // parallel.data_axis_size
    if parallel.offload_optimizer.device == "nvme":
        found += NVME_OPTIMIZER_TENSORS * 4 * min(share, parallel.sub_group_size)
    if parallel.offload_param.device == "nvme":
        found += weight_bytes(config) * parallel.offload_param.buffer_count * nvme_buffer_elements(config)
        found += weight_bytes(config) * min(share, NVME_PARAMETERS_IN_CPU)
    return found


def _snapshot(config: RunConfig, stage: int) -> int:
    """The host copy that asynchronous saving writes from: a rank's weights and optimizer state."""
    if not config.checkpoint.async_save or config.mode != "full":
        return 0
    state = _model_state(config, stage)
    return state["weights"][0] + state["optimizer"][0]


def activation_bytes(config: RunConfig, stage: int) -> int:
    """Everything kept for the backward pass, over the micro batches in flight."""
    layers = stage_layers(config)[stage]
    stages = config.parallel.pipeline_parallel_size
    in_flight = min(stages - stage, config.accumulation_steps)
    checkpointing = config.parallel.activation_checkpointing
    layer = _layer_bytes(config)
    # A stage keeps the output that it sent on until the output's gradient comes back.
    sent = _stream_bytes(config) if stage < stages - 1 else 0
    if checkpointing.granularity == "full":
        pieces = -(-layers // checkpointing.interval_layers)
        kept = pieces * _stream_bytes(config) + sent
        # While one piece is recomputed, all activations of its layers exist.
        at_once = min(checkpointing.interval_layers, layers)
        return in_flight * kept + at_once * layer + _ends_bytes(config, stage)
    kept = in_flight * (layers * layer + sent + _ends_bytes(config, stage))
    # While one layer's core or MLP is recomputed, its dropped activations exist again.
    return kept + max(_layer_bytes(config, whole=True) - layer, 0)


def _layer_bytes(config: RunConfig, whole: bool = False) -> int:
    """One layer and one micro batch: arXiv:2205.05198, section 4, counted by tensor.

    Per token and hidden unit, whole on every tensor-parallel rank unless sequence parallel: two LayerNorm
    inputs, the inputs of query/key/value and of the MLP, two dropout masks. Cut among the ranks: query, key,
    value, attention output, the MLP's GELU input and output. Ulysses cuts everything: tokens, and the heads
    of all tokens inside attention. Selective recomputation drops the GELU's output and the scores, unless
    `whole`.
    """
    model, parallel = config.model, config.parallel
    tensor = parallel.tensor_parallel_size
    selective = parallel.activation_checkpointing.granularity == "selective" and not whole
    stream_cut = _stream_cut(config)
    # Autocast leaves the residual stream in the format of the weights, fp32.
    stream, product = weight_bytes(config), _product_element(config)
    masks = 2 if model.hidden_dropout else 0
    width = (1 if selective else 2) * model.resolved_ffn_hidden_size / model.hidden_size
    per_unit = (2 * stream + 2 * product + masks) / stream_cut + (4 + width) * product / tensor
    tokens = _tokens(config)
    # Flash attention keeps one fp32 number per head and token, the log-sum-exp of the scores.
    heads = model.num_attention_heads / tensor
    scores = 4 * heads * tokens
    if keeps_scores(config):
        # Softmax, its dropout mask and the dropped-out softmax, for every pair of positions.
        masks = 1 + product if model.attention_dropout else 0
        scores = 0 if selective else (product + masks) * heads * tokens * model.seq_length
    return int(tokens * model.hidden_size * per_unit + scores)


def _tokens(config: RunConfig) -> int:
    """Tokens of a micro batch on one rank; Ulysses ranks share each sequence."""
    tokens = config.model.seq_length * config.batch.micro_batch_size
    return tokens // config.parallel.ds_sequence_parallel_size


def keeps_scores(config: RunConfig) -> bool:
    """Whether the attention kernel materializes all scores: `math`, and on CPU any kernel with dropout."""
    backend = config.model.attention_backend
    on_cpu = config.resources.device == "cpu"
    return backend == "math" or (backend == "auto" and on_cpu and config.model.attention_dropout > 0)


def _ends_bytes(config: RunConfig, stage: int) -> int:
    """The embedding's dropout mask on the first stage, the final LayerNorm's input and output on the last."""
    per_unit = 0
    if stage == 0 and config.model.hidden_dropout:
        per_unit += 1
    if stage == config.parallel.pipeline_parallel_size - 1:
        per_unit += weight_bytes(config) + _product_element(config)
    return per_unit * _tokens(config) * config.model.hidden_size // _stream_cut(config)


def _stream_bytes(config: RunConfig) -> int:
    """The input of a layer, one micro batch: what activation checkpointing keeps."""
    return weight_bytes(config) * _tokens(config) * config.model.hidden_size // _stream_cut(config)


def _stream_cut(config: RunConfig) -> int:
    """Ranks that share the tokens between the layers' regions: Megatron's sequence parallelism."""
    return config.parallel.tensor_parallel_size if config.parallel.sequence_parallel else 1


def _product_element(config: RunConfig) -> int:
    """Bytes of a number that goes into or comes out of a matrix product."""
    return 4 if config.precision.dtype == "fp32" else 2


def logits_bytes(config: RunConfig, stage: int) -> int:
    """The fused linear + cross entropy of parallel/cross_entropy.py, on the last stage.

    A chunk's logits in the products' format and its log-softmax in fp32; the fp32 gradient of the word
    embeddings and the gradient of the hidden states, both made in the forward pass.
    """
    if stage != config.parallel.pipeline_parallel_size - 1:
        return 0
    tokens = _tokens(config)
    chunk = min(config.model.cross_entropy_chunk_tokens or tokens, tokens)
    vocabulary = config.padded_vocab_size // config.parallel.tensor_parallel_size
    hidden = config.model.hidden_size
    return chunk * vocabulary * (_product_element(config) + 4) + 4 * vocabulary * hidden + 4 * tokens * hidden


def _workspace(config: RunConfig, stage: int) -> int:
    parallel, zero = config.parallel, config.parallel.zero_stage
    count = count_stage_parameters(config, stage).total
    on_gpu = config.resources.device == "gpu"
    asked = bucket_elements(config, parallel.reduce_bucket_size)
    buffers = 0
    if zero in (1, 2) and not is_bf16_optimizer(config):
        # Read in DeepSpeed 0.19: stage_1_and_2.py, setup_buckets. Stage 1 reduces the fp32 sums.
        element = 4 if zero == 1 else weight_bytes(config)
        # Buffers are filled only as far as there are gradients, and a CPU gives no memory to the rest.
        bucket = asked if on_gpu else min(asked, count)
        two = parallel.overlap_comm and parallel.pipeline_parallel_size == 1
        if parallel.contiguous_gradients:
            buffers += element * bucket * (2 if two else 1)
        if parallel.offload_optimizer.device == "none":
            # The flat fp32 gradient of this rank's share, made for the step.
            buffers += 4 * count // parallel.data_axis_size
    if zero == 3:
        buffers += weight_bytes(config) * min(count, parallel.stage3_max_live_parameters)
        buffers += weight_bytes(config) * (asked if on_gpu else min(asked, count))
    return buffers + (GPU_RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES)


def _device(config: RunConfig) -> tuple[int | None, str]:
    resources = config.resources
    if resources.device == "gpu":
        device = find_device(resources.gpu_type)
        return (device.memory_bytes, device.name) if device else (None, "GPU of unknown type")
    ranks = max(1, config.world_size // resources.nodes)
    label = "host memory" if ranks == 1 else f"host memory / {ranks} ranks"
    if resources.memory_per_node_bytes:
        return resources.memory_per_node_bytes // ranks, label
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks, f"this machine's {label}"
