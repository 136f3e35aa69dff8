"""Rules of the model's shape and its sharding across the ranks: one function for each rule."""

from collections.abc import Callable

from nbtrain.config.arithmetic.attention_kernels import FLASH_GENERATION, FLASH_HEAD_SIZE, lengths_problem
from nbtrain.config.arithmetic.devices import DEVICES, find_device, nearest_device_names
from nbtrain.config.arithmetic.divisors import nearest_divisors, nearest_multiples
from nbtrain.config.arithmetic.networks import NETWORK_BY_NAME, find_network, nearest_network_names
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.findings import mistake
from nbtrain.config.rules import limits
from nbtrain.config.rules.limits import no_multiple, problems_of
from nbtrain.config.rules.wording import Problems, broken, join
from nbtrain.config.schema import RopeScalingConfig, RunConfig

# FP8 as the schema promises it: from Hopper on.
FP8_CAPABILITY = (9, 0)


def legal_heads(hidden: int, wanted: int, ranks: int) -> list[int]:
    """Return numbers of heads around `wanted` that divide `hidden` into heads of a usual size, nearest first.

    At most one of them is smaller than `wanted`, and at most one larger. Both are multiples of `ranks`.
    """
    counts = [count for count in range(1, hidden + 1) if hidden % count == 0 and _is_usual(hidden // count)]
    counts = [count for count in counts if count % ranks == 0]
    around = [max((count for count in counts if count < wanted), default=0)]
    around.append(min((count for count in counts if count > wanted), default=0))
    return sorted(filter(None, around), key=lambda count: abs(count - wanted))


def _is_usual(head: int) -> bool:
    """Return whether a head size is usual: flash attention supports at most 256; below 32 is too small."""
    return 32 <= head <= FLASH_HEAD_SIZE and head % 8 == 0


def heads_divide(config: RunConfig) -> Problems:
    """All ranks have the same number of heads, and all tensor-parallel ranks the same part of the MLP."""
    shape, parallel, model = config.shape, config.parallel, config.model
    tensor = parallel.tensor_parallel_size
    yield from problems_of(config, limits.heads(shape, tensor, parallel.ds_sequence_parallel_size))
    key = "model.ffn_hidden_size" if model.ffn_hidden_size else "model.hidden_size"
    yield from problems_of(config, limits.mlp_width(shape, tensor, key))


def heads_fill_the_width(config: RunConfig) -> Problems:
    """The number of heads divides the hidden size, unless kv_channels is set."""
    model, parallel = config.model, config.parallel
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_channels is not None or hidden % heads == 0:
        return
    words = f"num_attention_heads({heads})"
    ranks = parallel.tensor_parallel_size * parallel.ds_sequence_parallel_size
    if legal := legal_heads(hidden, heads, ranks):
        yield broken(
            config,
            "model.num_attention_heads",
            f"must divide hidden_size({hidden}); nearest: "
            f"{' or '.join(f'{count} (heads of {hidden // count})' for count in legal)}.\n"
            f"  Or set hidden_size: {join(nearest_multiples(hidden, heads))}.",
        )
    else:
        yield from no_multiple(config, "model.hidden_size", heads, words)


def layers_fill_the_stages(config: RunConfig) -> Problems:
    """Each pipeline stage has at least one layer, and each layer is in exactly one stage."""
    layers, parallel = config.model.num_layers, config.parallel
    pipeline, cut = parallel.pipeline_parallel_size, parallel.pipeline_stage_layers
    if cut is not None:
        if len(cut) != pipeline:
            yield broken(
                config,
                "parallel.pipeline_stage_layers",
                f"has {len(cut)} stages, but pipeline_parallel_size is {pipeline}.",
                "Set null to divide the layers by cost.",
            )
        if sum(cut) != layers:
            yield broken(
                config,
                "parallel.pipeline_stage_layers",
                f"adds up to {sum(cut)} layers, but num_layers is {layers}.",
                "Set null to divide the layers by cost.",
            )
    else:
        yield from problems_of(config, limits.stages(config.shape, pipeline))


def pipeline_is_not_interleaved(config: RunConfig) -> Problems:
    """Megatron's interleaved schedule is refused, because DeepSpeed's pipeline does not support it."""
    if config.parallel.num_layers_per_virtual_pipeline_stage is not None:
        yield broken(
            config,
            "parallel.num_layers_per_virtual_pipeline_stage",
            "requests the interleaved pipeline, which is not supported: DeepSpeed's PipelineModule runs "
            "one forward, one backward (1F1B), with consecutive layers on each rank.\n"
            "  Set it to null; a smaller micro_batch_size makes the pipeline's bubble smaller as well.",
        )


def recomputed_pieces_fit(config: RunConfig) -> Problems:
    """A group of recomputed layers is not larger than the number of layers on a rank."""
    checkpointing = config.parallel.activation_checkpointing
    if checkpointing.granularity != "full" or any(layers_fill_the_stages(config)):
        return
    most, pipeline = max(stage_layers(config)), config.parallel.pipeline_parallel_size
    broken = limits.recomputed_layers(checkpointing.interval_layers, most, pipeline)
    yield from problems_of(config, broken)


def sequence_fits_positions(config: RunConfig) -> Problems:
    """Every position of a sequence has a learned embedding, or is within the context of generation."""
    model = config.model
    if model.seq_length > model.resolved_max_position_embeddings:
        yield broken(
            config,
            "model.seq_length",
            f"must be at most max_position_embeddings({model.max_position_embeddings}); "
            f"set seq_length: {model.max_position_embeddings}, or max_position_embeddings: "
            f"{model.seq_length}.",
        )


def rotary_positions_fit(config: RunConfig) -> Problems:
    """An even part of each head is rotated, and fields that only rope reads are set only with rope."""
    model, fields = config.model, type(config.model).model_fields
    if model.position_embedding_type != "rope":
        for name in ("rotary_base", "rotary_percent", "rope_scaling", "no_rope_freq"):
            if getattr(model, name) != fields[name].default:
                yield broken(
                    config,
                    f"model.{name}",
                    "is read with position_embedding_type: rope only, but that is "
                    f"{model.position_embedding_type}.",
                    "Remove it, or set rope.",
                )
        return
    head = model.resolved_kv_channels
    if model.rotary_size % 2 or not model.rotary_size:
        around = (model.rotary_size - 1, model.rotary_size + 1) if model.rotary_size else (2,)
        near = join(size for size in around if 0 < size <= head)
        yield broken(
            config,
            "model.rotary_percent",
            f"rotates {model.rotary_size} numbers of each head of {head}, but must rotate an even number, "
            f"in pairs; nearest: {near or 'none: heads of one number'}.",
        )
    if config.parallel.fpdt_chunk_tokens:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            "does not rotate queries, but model.position_embedding_type is rope.",
            "Set fpdt_chunk_tokens: 0.",
        )
    if (scaling := model.rope_scaling) is not None:
        yield from _scaling_has_its_fields(config, scaling)


# {kind of rope_scaling: the fields that it reads besides its factor}
SCALING_FIELDS = {
    "linear": (),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow"),
}


def _scaling_has_its_fields(config: RunConfig, scaling: RopeScalingConfig) -> Problems:
    key, read = "model.rope_scaling", SCALING_FIELDS[scaling.kind]
    for name, field in type(scaling).model_fields.items():
        value = getattr(scaling, name)
        if name not in ("kind", "factor", *read) and value != field.default:
            yield broken(
                config,
                f"{key}.{name}",
                f"is not read with kind: {scaling.kind}, which has {', '.join(('factor', *read))}.",
                "Remove it.",
            )
        if name in read and value is None:
            yield mistake(config, f"{key}.kind", f"{key}.{name} is missing: kind: {scaling.kind} needs it.")
    for least, most in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        low, high = getattr(scaling, least), getattr(scaling, most)
        if least in read and low >= high:
            yield broken(config, f"{key}.{least}", f"must be less than {most}({high:g}).")


def sequence_divides(config: RunConfig) -> Problems:
    """Ranks that share a sequence have equal parts of it; with FPDT, they have equal parts of each chunk."""
    parallel, shape = config.parallel, config.shape
    ulysses, context = parallel.ds_sequence_parallel_size, parallel.context_parallel_size
    if parallel.sequence_parallel:
        tensor = parallel.tensor_parallel_size
        if wrong := list(problems_of(config, limits.sharded_sequence(shape, tensor, ulysses, context))):
            # The lengths nearest to the sharing ranks' own rule may break this one.
            yield from wrong
            return
    yield from problems_of(config, limits.sequence(shape, ulysses, context, parallel.fpdt_chunk_tokens))


def fpdt_has_its_kernels(config: RunConfig) -> Problems:
    """With FPDT the GPU supports flash-attn, and there is no attention dropout and no masking between
    documents.
    """
    if not config.parallel.fpdt_chunk_tokens:
        return
    device = find_device(config.resources.gpu_type)
    if config.resources.device == "gpu" and device and FLASH_GENERATION not in device.flash_attention:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"needs flash-attn {FLASH_GENERATION}, which runs on GPUs from Ampere on (compute capability "
            f"8.0), but resources.gpu_type is {device.name}.",
            "Set fpdt_chunk_tokens: 0.",
        )
    if config.model.attention_dropout:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"needs model.attention_dropout: 0, but it is {config.model.attention_dropout:g}: "
            "its backward pass would draw different random numbers.",
        )
    if (option := config.data.isolating_setting) is not None:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"cannot keep documents apart, but data has {option}.",
            f"Set fpdt_chunk_tokens: 0, or change {option.partition(':')[0]}.",
        )


def layout_fits_resources(config: RunConfig) -> Problems:
    """There is one process for each GPU. On CPU, every machine has the same number of processes."""
    parallel, resources, world = config.parallel, config.resources, config.world_size
    data, pipeline = parallel.data_parallel_size, parallel.pipeline_parallel_size
    tensor, sharing = parallel.tensor_parallel_size, parallel.sequence_ranks
    sequence = f" * sequence({sharing})" if sharing > 1 else ""
    layout = f"data({data}) * pipeline({pipeline}) * tensor({tensor}){sequence} = {world} processes"
    nodes, gpus = resources.nodes, resources.gpus_per_node
    if resources.device == "cpu":
        if world % nodes:
            yield mistake(
                config,
                "resources.nodes",
                f"{layout},\n"
                f"  which do not spread evenly over nodes({nodes}). "
                f"Nearest: {join(nearest_divisors(nodes, world))}.",
            )
        return
    if world == nodes * gpus:
        return
    fixes = []
    if gpus and world % gpus == 0:
        fixes.append(f"nodes: {world // gpus}")
    elif world % nodes == 0:
        fixes.append(f"gpus_per_node: {world // nodes}")
    if (nodes * gpus) % (pipeline * tensor * sharing) == 0 and nodes * gpus:
        fixes.append(f"data_parallel_size: {nodes * gpus // (pipeline * tensor * sharing)}")
    advice = f" Set {', or '.join(fixes)}." if fixes else ""
    yield mistake(
        config,
        "resources.gpus_per_node",
        f"{layout},\n  but resources give nodes({nodes}) * gpus_per_node({gpus}) = {nodes * gpus}.{advice}",
    )


def gpu_type_is_known(config: RunConfig) -> Problems:
    """resources.gpu_type is in the device table, from which the plan takes memory and peak FLOP/s."""
    name = config.resources.gpu_type
    if name is None or find_device(name):
        return
    near = nearest_device_names(name)
    which = f"Nearest: {', '.join(near)}" if near else f"Known: {', '.join(one.name for one in DEVICES)}"
    yield broken(
        config,
        "resources.gpu_type",
        f"is not in the device table. {which}.",
        "Set null to plan without the device's memory and peak.",
    )


def network_is_known(config: RunConfig) -> Problems:
    """resources.network is in the network table, and only one field gives the bandwidth. A fraction needs a
    bandwidth, which a CPU run does not assume.
    """
    resources = config.resources
    named = resources.network is not None or resources.network_bytes_per_second is not None
    if resources.network_reached_fraction is not None and resources.device == "cpu" and not named:
        yield broken(
            config,
            "resources.network_reached_fraction",
            "is a fraction of a bandwidth, and on device: cpu none is assumed.",
            "Set resources.network or resources.network_bytes_per_second, or null.",
        )
    if resources.network is None:
        return
    if resources.network_bytes_per_second is not None:
        yield broken(
            config,
            "resources.network_bytes_per_second",
            f"and resources.network = {resources.network} both give the bandwidth between machines.",
            "Set one of them to null.",
        )
    if find_network(resources.network) is None:
        near = nearest_network_names(resources.network)
        which = f"Nearest: {', '.join(near)}" if near else f"Known: {', '.join(NETWORK_BY_NAME)}"
        yield broken(
            config,
            "resources.network",
            f"is not in the network table. {which}. For another network set null and "
            "resources.network_bytes_per_second: the bytes per second, one way, of all devices of a machine.",
        )


def format_has_its_units(config: RunConfig) -> Problems:
    """The named GPU supports the number format in hardware; torch would emulate bf16, many times slower."""
    resources, dtype = config.resources, config.precision.dtype
    device = find_device(resources.gpu_type)
    if resources.device == "cpu" or device is None or device.peak(dtype) is not None:
        return
    (major, minor), others = device.compute_capability, ("fp16", "fp32")
    instead = " or ".join(other for other in others if other != dtype and device.peak(other) is not None)
    # A GPU without the format is of NVIDIA's generations before Ampere, or of another maker.
    rule = f"compute capability {major}.{minor}; bf16 from 8.0 (Ampere) on" if major else device.vendor
    yield broken(
        config,
        "precision.dtype",
        f"is not computed by the hardware of resources.gpu_type {device.name} ({rule}).\n"
        f"  Set precision.dtype: {instead}, or another gpu_type.",
    )


def attention_backend_serves(config: RunConfig) -> Problems:
    """The named kernel supports the device, the number format, the dropout and the heads. torch would report
    it only at the first step.
    """
    model, resources = config.model, config.resources
    backend = model.attention_backend
    if backend in ("auto", "math"):
        return
    reason = None
    if resources.device == "cpu":
        if backend == "efficient":
            reason = "a CPU has the flash and math kernels only"
        elif model.attention_dropout:
            dropout = f"attention_dropout is {model.attention_dropout:g}"
            reason = f"on a CPU only the math kernel has dropout, but {dropout}"
    elif backend == "flash":
        device = find_device(resources.gpu_type)
        head = model.resolved_kv_channels
        if config.precision.dtype == "fp32":
            reason = "on a GPU flash attention needs bf16 or fp16, but precision.dtype is fp32"
        elif device and FLASH_GENERATION not in device.flash_attention:
            reason = f"flash attention needs a GPU from Ampere on, but resources.gpu_type is {device.name}"
        elif head > FLASH_HEAD_SIZE:
            most = f"heads of at most {FLASH_HEAD_SIZE}"
            reason = f"flash attention takes {most}, but this model's heads have {head}"
        elif model.window_size is not None:
            reason = _flash_without_mask(config)
        else:
            context = config.parallel.context_parallel_size
            yield from problems_of(config, limits.flash_parts(context, lengths_problem(config)))
    if reason:
        yield broken(
            config,
            "model.attention_backend",
            f"cannot serve this run: {reason}.\n  Set attention_backend: auto.",
        )


def _flash_without_mask(config: RunConfig) -> str | None:
    """Return why the flash kernel on a GPU cannot compute a window without a mask; None if it can."""
    model = config.model
    problem = lengths_problem(config) or ("compile: false, but it is true" if model.compile else None)
    return problem and limits.needs_without_mask(f"window_size({model.window_size})", problem)


def fp8_has_its_units(config: RunConfig) -> Problems:
    """FP8 needs a GPU from Hopper on, and matrices whose sides are multiples of 16."""
    if not config.precision.fp8 or config.resources.device == "cpu":
        return
    device = find_device(config.resources.gpu_type)
    if device and device.compute_capability < FP8_CAPABILITY:
        major, minor = device.compute_capability
        has = f"has {major}.{minor}" if major else f"is {device.vendor}'s"
        yield broken(
            config,
            "precision.fp8",
            f"needs a GPU from Hopper on (compute capability 9.0), but resources.gpu_type {device.name} "
            f"{has}.",
            "Set fp8: false.",
        )
    parallel, shape = config.parallel, config.shape
    sides = limits.fp8_sides(shape, parallel.tensor_parallel_size)
    if config.model.kv_channels is None:
        # heads_fill_the_width reports heads that do not fill hidden_size.
        sides = (side for side in sides if side.key != "model.kv_channels")
    yield from problems_of(config, sides)
    # FPDT's MLP multiplies a chunk at a time.
    name = "fpdt_chunk_tokens" if parallel.fpdt_chunk_tokens else "seq_length"
    length = parallel.fpdt_chunk_tokens or shape.seq_length
    micro, ulysses = config.batch.micro_batch_size, parallel.ds_sequence_parallel_size
    uneven = limits.fp8_tokens(micro, length, ulysses, parallel.context_parallel_size, name)
    yield from problems_of(config, uneven)


LAYOUT_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    heads_fill_the_width,
    heads_divide,
    layers_fill_the_stages,
    pipeline_is_not_interleaved,
    recomputed_pieces_fit,
    sequence_fits_positions,
    rotary_positions_fit,
    sequence_divides,
    fpdt_has_its_kernels,
    layout_fits_resources,
    gpu_type_is_known,
    network_is_known,
    format_has_its_units,
    attention_backend_serves,
    fp8_has_its_units,
)
