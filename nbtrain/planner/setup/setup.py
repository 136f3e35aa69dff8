"""A setup: a model, a layout and a kind of device, which together determine memory, time and traffic.

Each run has a setup (`setup_of`), and the layout search creates thousands of setups. A published run of
another program is a setup too, with the program's name as its `engine`. engines.py describes the memory and
time of each program.
"""

import math
from dataclasses import dataclass
from typing import Literal

from nbtrain.config.arithmetic.adapters import adapter_activations, adapter_sizes, trained_row_elements
from nbtrain.config.arithmetic.attention_kernels import keeps_scores, masks_parts, masks_windows
from nbtrain.config.arithmetic.devices import Device, find_device
from nbtrain.config.arithmetic.networks import USUAL_REACHED, find_network
from nbtrain.config.arithmetic.stages import cut_evenly, stage_layers
from nbtrain.config.code_file import own_loss
from nbtrain.config.deepspeed.ds_config import bucket_elements, nvme_buffer_elements
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.resources_section import ResourcesConfig
from nbtrain.config.shape import Shape

Dtype = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, slots=True)
class Setup:
    """A model, its layout, its batch and its devices, with the field names of a run YAML."""

    shape: Shape
    engine: str = "nbtrain"
    """Training program: a key of engines.py."""

    device: Device | None = None
    """The GPU's row in the device table; None on a CPU or if the GPU type is not known."""
    on_gpu: bool = True
    nodes: int = 1
    devices_per_node: int = 1
    fabric_bytes_per_second: float | None = None
    """Network bandwidth of a node in bytes per second, one way, for all its devices together.

    None means the usual network of the device.
    """
    fabric_reached: float | None = None
    """Fraction of the network's bandwidth that collectives reach; None means the value in time/rates.py."""
    host_memory_bytes: int | None = None
    """Host memory of a node; None if it is not known."""
    on_this_machine: bool = True
    """Whether this machine's memory is used for a CPU setup whose host memory is not known."""
    cpus_per_node: int | None = None

    micro_batch_size: int = 1
    global_batch_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    virtual_stages: int = 1
    """Number of model chunks per pipeline rank in an interleaved schedule; 1 means the 1F1B schedule."""
    stage_layers: tuple[int, ...] | None = None
    """Number of blocks in each stage; None for an even split."""
    context_parallel_size: int = 1
    """Number of context-parallel ranks across which each sequence is split.

    In nbtrain, each rank gathers all keys and values; other programs pass them around a ring.
    """
    ulysses_size: int = 1
    """Number of Ulysses ranks across which sequences and heads are split (ds_sequence_parallel_size)."""
    data_parallel_size: int = 1
    sequence_parallel: bool = False
    deterministic: bool = False
    """Whether attention adds gradients in a fixed order (other programs: Megatron's --deterministic-mode)."""
    overlap_tensor: bool = False
    """Whether tensor-parallel traffic is split and overlapped with matrix products.

    Only other programs do this: Megatron's --tp-comm-overlap, torchtitan's asynchronous tensor parallelism.
    """
    fpdt_chunk_tokens: int = 0

    zero_stage: int = 0
    shard_size: int | None = None
    """Number of ranks across which ZeRO shards states (HYBRID_SHARD); None means the whole data axis."""
    hpz_size: int = 1
    """Number of ranks across which ZeRO++'s second copy of the parameters is sharded; 1 means no copy."""
    quantized_weights: bool = False
    quantized_gradients: bool = False
    offload_optimizer: Place = "none"
    offload_param: Place = "none"
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    communication_dtype: Dtype = "fp32"

    dtype: Dtype = "bf16"
    autocast: bool = False
    fp8: bool = False
    fp4: bool = False
    """Whether matrix products use 4-bit numbers with block scales (other programs: NVFP4)."""
    lora_rank: int = 0
    """Rank r of the adapters, which are then trained instead of the model; 0 trains the whole model."""
    prefers: bool = False
    """Whether the run trains on pairs of answers (dpo).

    The output layer then needs one more matrix product. States and activations are the same as without
    dpo, because the reference model's results are read from a file.
    """
    adapter_sizes: tuple[int, ...] = ()
    """Number of elements of each adapter matrix of a block on one rank, for a run with lora.

    () means that they are computed as r (rows + columns) for each matrix of the block.
    """
    adapter_activations: tuple[int, int] = (0, 0)
    """Values per token that a block keeps for its adapters: between A and B, and of dropped-out inputs."""
    trained_row_elements: int = 0
    """Number of elements in the token rows of the embedding that are trained along with adapters.

    The output layer has as many trained elements if it is not tied to the embedding.
    """
    load_in_4bit: bool = False
    """Whether the blocks' frozen matrices are stored in 4 bits (QLoRA)."""
    double_quant: bool = False
    """Whether the quantization constants of 4-bit matrices are stored in 8 bits."""
    recompute: Recompute = "none"
    recompute_interval: int = 1
    """Number of consecutive blocks that full recomputation recomputes together."""
    recomputes_mlp: bool = False
    """Whether selective recomputation repeats the MLP too (Megatron's --recompute-modules mlp)."""
    keeps_scores: bool = False
    """Whether the attention kernel keeps the scores of all pairs of positions (no flash attention)."""
    masks_parts: bool = False
    """Whether torch's kernel needs a mask for the later chunk of a sequence (context parallelism)."""
    masks_windows: bool = False
    """Whether sliding-window layers pass a mask to a kernel that computes all pairs of positions."""
    compiled: bool = False
    """Whether torch.compile fuses the operations between the matrix products."""

    reduce_bucket_elements: int = 500_000_000
    allgather_bucket_elements: int = 500_000_000
    sub_group_elements: int = 1_000_000_000
    max_live_elements: int = 1_000_000_000
    prefetch_elements: int = 50_000_000
    persistence_elements: int = 100_000
    logits_chunk_tokens: int = 0
    """Number of tokens whose logits exist at the same time; 0 means all tokens of the micro batch."""
    own_loss: str = ""
    """Logits that the run's own loss() gets; "" if the run has no loss() of its own.

    A loss() gets all logits of a micro batch: for the whole vocabulary ("whole"), or for this rank's shard of
    the vocabulary ("shard").
    """
    nvme_buffer_elements: int = 0
    nvme_buffer_count: int = 5
    muon_steps: int = 0
    """Number of Newton-Schulz iterations of Muon, which updates the blocks' matrices.

    With 0, AdamW updates all parameters.
    """
    saves_in_background: bool | None = False
    """Whether asynchronous saving keeps a host copy of weights and optimizer state.

    None if this depends on the available host memory (memory/estimate.py).
    """
    loader_workers: int = 0
    """Number of data-loader processes per rank."""

    @property
    def sharing(self) -> int:
        """Number of ranks across which each sequence is split."""
        return self.ulysses_size * self.context_parallel_size

    @property
    def data_axis_size(self) -> int:
        """Number of ranks that hold the same weights and train on different tokens."""
        return self.data_parallel_size * self.sharing

    @property
    def zero_size(self) -> int:
        """Number of ranks across which ZeRO shards states."""
        return self.shard_size or self.data_axis_size

    @property
    def model_size(self) -> int:
        """Number of ranks that hold one replica of the model, without Ulysses and context-parallel ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def world_size(self) -> int:
        return self.model_size * self.data_axis_size

    @property
    def accumulation_steps(self) -> int:
        """Number of micro batches per rank and step."""
        return self.micro_batches_of(self.global_batch_size)

    def micro_batches_of(self, global_batch_size: int) -> int:
        """Return the number of micro batches per rank in a step with this global batch size."""
        return max(global_batch_size // (self.micro_batch_size * self.data_parallel_size), 1)

    @property
    def tokens_per_micro_batch(self) -> int:
        """Number of tokens of a micro batch on one rank. Ulysses and context parallelism split the tokens."""
        return self.shape.seq_length * self.micro_batch_size // self.sharing

    @property
    def muon_ranks(self) -> int:
        """Number of ranks across which Muon distributes the matrices of a stage.

        Without ZeRO, every replica updates all matrices.
        """
        return self.tensor_parallel_size * (self.data_axis_size if self.zero_stage else 1)

    @property
    def attended_groups(self) -> float:
        """Number of key and value heads that a rank holds in attention, counted over its own tokens.

        Tensor-parallel ranks that share a query group each hold a copy of its key and value. Ulysses ranks
        repeat a tensor-parallel rank's groups until all have the same number (parallel/query_groups.py).
        """
        groups = max(self.shape.num_query_groups / self.tensor_parallel_size, 1)
        return groups * (self.ulysses_size // math.gcd(int(groups), self.ulysses_size))

    @property
    def adapter_parameters(self) -> int:
        """Number of adapter parameters on one model-parallel rank of the largest stage."""
        shape, blocks = self.shape, max(self.layers_by_stage)
        if self.adapter_sizes:
            return blocks * sum(self.adapter_sizes) + self.trained_row_elements
        opened = (2 if shape.gated else 1) * shape.ffn_hidden_size
        columns = shape.query_width + 2 * shape.kv_width + opened + 2 * shape.hidden_size
        rows = 2 * shape.hidden_size + shape.query_width + shape.ffn_hidden_size
        return blocks * self.lora_rank * (columns + rows) // self.tensor_parallel_size

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.shape.seq_length

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        """Number of blocks in each pipeline stage."""
        if self.stage_layers is not None:
            return self.stage_layers
        return tuple(cut_evenly(self.shape, self.pipeline_parallel_size, self.recompute == "full"))


def network_of(resources: ResourcesConfig) -> tuple[float | None, float | None]:
    """Return (bandwidth in bytes per second, reached fraction) of the network that a run specifies.

    A value is None if the run does not specify it; planner/time/rates.py then assumes one.
    """
    network = find_network(resources.network)
    fabric = network.bytes_per_second if network else resources.network_bytes_per_second
    usual = network.reached if network else USUAL_REACHED if fabric else None
    return fabric, resources.network_reached_fraction or usual


def setup_of(config: RunConfig) -> Setup:
    """Return the setup of a run."""
    parallel, precision, resources = config.parallel, config.precision, config.resources
    on_gpu = resources.device == "gpu"
    fabric, reached = network_of(resources)
    return Setup(
        shape=shape_of(config),
        device=find_device(resources.gpu_type) if on_gpu else None,
        on_gpu=on_gpu,
        nodes=resources.nodes,
        devices_per_node=config.ranks_per_node,
        fabric_bytes_per_second=fabric,
        fabric_reached=reached,
        host_memory_bytes=resources.memory_per_node_bytes,
        on_this_machine=config.backend.kind == "local",
        cpus_per_node=resources.cpus_per_node,
        micro_batch_size=config.batch.micro_batch_size,
        global_batch_size=config.batch.global_batch_size,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        stage_layers=tuple(stage_layers(config)),
        ulysses_size=parallel.ds_sequence_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        sequence_parallel=parallel.sequence_parallel,
        fpdt_chunk_tokens=parallel.fpdt_chunk_tokens,
        zero_stage=parallel.zero_stage,
        hpz_size=config.zero_hpz_partition_size if parallel.zero_hpz else 1,
        quantized_weights=parallel.zero_quantized_weights,
        quantized_gradients=parallel.zero_quantized_gradients,
        offload_optimizer=parallel.offload_optimizer.device,
        offload_param=parallel.offload_param.device,
        overlap_comm=parallel.overlap_comm,
        contiguous_gradients=parallel.contiguous_gradients,
        communication_dtype=parallel.communication_data_type,
        dtype=precision.dtype,
        autocast=precision.autocast,
        fp8=precision.fp8,
        lora_rank=config.lora.rank if config.lora is not None else 0,
        prefers=config.dpo is not None,
        adapter_sizes=adapter_sizes(config),
        adapter_activations=adapter_activations(config),
        trained_row_elements=trained_row_elements(config),
        load_in_4bit=config.lora is not None and config.lora.load_in_4bit,
        double_quant=config.lora is not None and config.lora.bnb_4bit_use_double_quant,
        recompute=parallel.activation_checkpointing.granularity,
        recompute_interval=parallel.activation_checkpointing.interval_layers,
        keeps_scores=keeps_scores(config),
        masks_windows=masks_windows(config),
        masks_parts=masks_parts(config),
        compiled=config.model.compile,
        reduce_bucket_elements=bucket_elements(config, parallel.reduce_bucket_size),
        allgather_bucket_elements=bucket_elements(config, parallel.allgather_bucket_size),
        sub_group_elements=parallel.sub_group_size,
        max_live_elements=parallel.stage3_max_live_parameters,
        prefetch_elements=parallel.stage3_prefetch_bucket_size,
        persistence_elements=parallel.stage3_param_persistence_threshold,
        logits_chunk_tokens=config.model.cross_entropy_chunk_tokens,
        own_loss=own_loss(config),
        nvme_buffer_elements=nvme_buffer_elements(config),
        nvme_buffer_count=parallel.offload_param.buffer_count,
        muon_steps=config.optimizer.muon_num_ns_steps if config.optimizer.type == "Muon" else 0,
        saves_in_background=_saves_in_background(config),
        loader_workers=config.data.num_workers,
    )


def _saves_in_background(config: RunConfig) -> bool | None:
    """Return whether checkpoints are written in the background; None if it depends on the host memory."""
    return config.checkpoint.async_save if config.mode == "full" else False
