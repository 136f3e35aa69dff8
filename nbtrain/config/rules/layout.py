"""Rules about the model's shape and how it is sharded across the ranks: one function for each rule."""

from collections.abc import Callable

from nbtrain.base.text.amounts import counted
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

# Compute capability of Hopper, the first GPU generation on which nbtrain supports FP8.
FP8_CAPABILITY = (9, 0)


def legal_heads(hidden: int, wanted: int, ranks: int) -> list[int]:
    """Return the nearest legal numbers of heads below and above `wanted`, sorted by distance.

    A legal number is a multiple of `ranks` and divides `hidden` into heads of a usual size. The list has
    fewer than two entries if there is no such number below or above.
    """
    counts = [count for count in range(1, hidden + 1) if hidden % count == 0 and _is_usual(hidden // count)]
    counts = [count for count in counts if count % ranks == 0]
    around = [max((count for count in counts if count < wanted), default=0)]
    around.append(min((count for count in counts if count > wanted), default=0))
    return sorted(filter(None, around), key=lambda count: abs(count - wanted))


def _is_usual(head: int) -> bool:
    """Return whether a head size is usual: a multiple of 8, from 32 to flash attention's maximum of 256."""
    return 32 <= head <= FLASH_HEAD_SIZE and head % 8 == 0


def heads_divide(config: RunConfig) -> Problems:
    """Check that the heads and the MLP divide evenly among the ranks."""
    shape, parallel, model = config.shape, config.parallel, config.model
    tensor = parallel.tensor_parallel_size
    yield from problems_of(config, limits.heads(shape, tensor, parallel.ds_sequence_parallel_size))
    key = "model.ffn_hidden_size" if model.ffn_hidden_size else "model.hidden_size"
    yield from problems_of(config, limits.mlp_width(shape, tensor, key))


def heads_fill_the_width(config: RunConfig) -> Problems:
    """Check that the number of heads divides the hidden size, unless kv_channels is set."""
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
            f"  Or set hidden_size to a multiple of {heads}; nearest: "
            f"{join(nearest_multiples(hidden, heads))}.",
        )
    else:
        yield from no_multiple(config, "model.hidden_size", heads, words)


def layers_fill_the_stages(config: RunConfig) -> Problems:
    """Check that each pipeline stage has at least one layer, and that each layer is in exactly one stage."""
    layers, parallel = config.model.num_layers, config.parallel
    pipeline, cut = parallel.pipeline_parallel_size, parallel.pipeline_stage_layers
    if cut is not None:
        if len(cut) != pipeline:
            yield broken(
                config,
                "parallel.pipeline_stage_layers",
                f"lists {counted(len(cut), 'stage')}, but pipeline_parallel_size is {pipeline}.",
                "To divide the layers by cost, set pipeline_stage_layers: null.",
            )
        if sum(cut) != layers:
            yield broken(
                config,
                "parallel.pipeline_stage_layers",
                f"adds up to {counted(sum(cut), 'layer')}, but num_layers is {layers}.",
                "To divide the layers by cost, set pipeline_stage_layers: null.",
            )
    else:
        yield from problems_of(config, limits.stages(config.shape, pipeline))


def pipeline_is_not_interleaved(config: RunConfig) -> Problems:
    """Check that Megatron's interleaved schedule is off, because DeepSpeed's pipeline does not support it."""
    if config.parallel.num_layers_per_virtual_pipeline_stage is not None:
        yield broken(
            config,
            "parallel.num_layers_per_virtual_pipeline_stage",
            "turns on the interleaved pipeline schedule, which is not supported: DeepSpeed's PipelineModule "
            "uses the 1F1B schedule (one forward, one backward), with consecutive layers on each rank.\n"
            "  Set num_layers_per_virtual_pipeline_stage: null. To shrink the pipeline bubble, lower "
            "micro_batch_size instead.",
        )


def recomputed_pieces_fit(config: RunConfig) -> Problems:
    """Check that a group of recomputed layers is not larger than the number of layers on a rank."""
    checkpointing = config.parallel.activation_checkpointing
    if checkpointing.granularity != "full" or any(layers_fill_the_stages(config)):
        return
    most, pipeline = max(stage_layers(config)), config.parallel.pipeline_parallel_size
    broken = limits.recomputed_layers(checkpointing.interval_layers, most, pipeline)
    yield from problems_of(config, broken)


def sequence_fits_positions(config: RunConfig) -> Problems:
    """Check that seq_length is at most max_position_embeddings."""
    model = config.model
    if model.seq_length > model.resolved_max_position_embeddings:
        yield broken(
            config,
            "model.seq_length",
            f"must be at most max_position_embeddings({model.max_position_embeddings}). "
            f"Set seq_length: {model.max_position_embeddings}, or raise max_position_embeddings to "
            f"{model.seq_length}.",
        )


def rotary_positions_fit(config: RunConfig) -> Problems:
    """Check that rope rotates an even number of dimensions per head.

    Fields that apply only to rope must not be set without it.
    """
    model, fields = config.model, type(config.model).model_fields
    if model.position_embedding_type != "rope":
        for name in ("rotary_base", "rotary_percent", "rope_scaling", "no_rope_freq"):
            if getattr(model, name) != fields[name].default:
                yield broken(
                    config,
                    f"model.{name}",
                    "applies only to position_embedding_type: rope, but position_embedding_type is "
                    f"{model.position_embedding_type}.",
                    f"Remove {name}, or set position_embedding_type: rope.",
                )
        return
    head = model.resolved_kv_channels
    if model.rotary_size % 2 or not model.rotary_size:
        around = (model.rotary_size - 1, model.rotary_size + 1) if model.rotary_size else (2,)
        near = join(size for size in around if 0 < size <= head)
        yield broken(
            config,
            "model.rotary_percent",
            f"makes rope rotate {model.rotary_size} of the {head} dimensions of each head, but rope rotates "
            "dimensions in pairs, so the number must be even and more than 0; nearest: "
            f"{near or 'none, heads need 2 dimensions'}.",
        )
    if config.parallel.fpdt_chunk_tokens:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            "turns FPDT on, which does not support model.position_embedding_type: rope.",
            "Set fpdt_chunk_tokens: 0.",
        )
    if (scaling := model.rope_scaling) is not None:
        yield from _scaling_has_its_fields(config, scaling)


# {kind of rope_scaling: the fields that it uses besides factor}
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
                f"does not apply to kind: {scaling.kind}, which uses {', '.join(('factor', *read))}.",
                f"Remove {name}.",
            )
        if name in read and value is None:
            yield mistake(
                config,
                f"{key}.kind",
                f"{key}.{name} is missing, but {key}.kind = {scaling.kind} needs it. Set {name}.",
            )
    for least, most in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        low, high = getattr(scaling, least), getattr(scaling, most)
        if least in read and low >= high:
            yield broken(config, f"{key}.{least}", f"must be less than {most}({high:g}).")


def sequence_divides(config: RunConfig) -> Problems:
    """Check that the ranks that split a sequence get equal parts of it or, with FPDT, of each chunk."""
    parallel, shape = config.parallel, config.shape
    ulysses, context = parallel.ds_sequence_parallel_size, parallel.context_parallel_size
    if parallel.sequence_parallel:
        tensor = parallel.tensor_parallel_size
        if wrong := list(problems_of(config, limits.sharded_sequence(shape, tensor, ulysses, context))):
            # Stop here: the nearest lengths that the next rule suggests might still break this one.
            yield from wrong
            return
    yield from problems_of(config, limits.sequence(shape, ulysses, context, parallel.fpdt_chunk_tokens))


def fpdt_has_its_kernels(config: RunConfig) -> Problems:
    """Check that a run with FPDT has a GPU that supports flash-attn.

    FPDT supports neither attention dropout nor masks between documents.
    """
    if not config.parallel.fpdt_chunk_tokens:
        return
    device = find_device(config.resources.gpu_type)
    if config.resources.device == "gpu" and device and FLASH_GENERATION not in device.flash_attention:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"turns FPDT on, which needs flash-attn {FLASH_GENERATION} and therefore a GPU of generation "
            f"Ampere (compute capability 8.0) or newer, but resources.gpu_type is {device.name}.",
            "Set fpdt_chunk_tokens: 0.",
        )
    if config.model.attention_dropout:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"turns FPDT on, which needs model.attention_dropout: 0, but attention_dropout is "
            f"{config.model.attention_dropout:g}. FPDT's backward pass would draw other random numbers than "
            "its forward pass.",
        )
    if (option := config.data.isolating_setting) is not None:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            f"turns FPDT on, which cannot isolate documents from each other as data.{option} requires.",
            f"Set fpdt_chunk_tokens: 0, or change data.{option.partition(':')[0]}.",
        )


def layout_fits_resources(config: RunConfig) -> Problems:
    """Check that every GPU gets one rank or, on CPU, that every machine gets the same number of ranks."""
    parallel, resources, world = config.parallel, config.resources, config.world_size
    data, pipeline = parallel.data_parallel_size, parallel.pipeline_parallel_size
    tensor, sharing = parallel.tensor_parallel_size, parallel.sequence_ranks
    sequence = f" * sequence({sharing})" if sharing > 1 else ""
    processes = "1 process" if world == 1 else f"{world} processes"
    layout = f"data({data}) * pipeline({pipeline}) * tensor({tensor}){sequence} = {processes}"
    nodes, gpus = resources.nodes, resources.gpus_per_node
    if resources.device == "cpu":
        if world % nodes:
            yield mistake(
                config,
                "resources.nodes",
                f"{layout},\n"
                f"  which cannot be divided evenly among nodes({nodes}). "
                f"Nearest numbers of nodes: {join(nearest_divisors(nodes, world))}.",
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
        f"{layout},\n"
        f"  but resources has nodes({nodes}) * gpus_per_node({gpus}) = "
        f"{counted(nodes * gpus, 'GPU')}.{advice}",
    )


def gpu_type_is_known(config: RunConfig) -> Problems:
    """Check that resources.gpu_type is in the device table, which lists memory and peak FLOP/s."""
    name = config.resources.gpu_type
    if name is None or find_device(name):
        return
    near = nearest_device_names(name)
    known = ", ".join(device.name for device in DEVICES)
    which = f"Nearest: {', '.join(near)}" if near else f"Known devices: {known}"
    yield broken(
        config,
        "resources.gpu_type",
        f"is not in the device table. {which}.",
        "To plan without the device's memory and peak FLOP/s, set gpu_type: null.",
    )


def network_is_known(config: RunConfig) -> Problems:
    """Check that resources.network is in the network table, and that only one field sets the bandwidth.

    network_reached_fraction is a fraction of a bandwidth, so on CPUs it needs one of the fields that set it.
    """
    resources = config.resources
    named = resources.network is not None or resources.network_bytes_per_second is not None
    if resources.network_reached_fraction is not None and resources.device == "cpu" and not named:
        yield broken(
            config,
            "resources.network_reached_fraction",
            "is a fraction of the network's bandwidth, but with device: cpu no bandwidth is assumed.",
            "Set resources.network or resources.network_bytes_per_second, or set network_reached_fraction: "
            "null.",
        )
    if resources.network is None:
        return
    if resources.network_bytes_per_second is not None:
        yield broken(
            config,
            "resources.network_bytes_per_second",
            f"and resources.network = {resources.network} both set the bandwidth between machines.",
            "Set one of the two to null.",
        )
    if find_network(resources.network) is None:
        near = nearest_network_names(resources.network)
        which = f"Nearest: {', '.join(near)}" if near else f"Known networks: {', '.join(NETWORK_BY_NAME)}"
        yield broken(
            config,
            "resources.network",
            f"is not in the network table. {which}. For another network, set network: null, and set "
            "resources.network_bytes_per_second to the one-way bandwidth of a machine, the sum over all its "
            "network devices.",
        )


def format_has_its_units(config: RunConfig) -> Problems:
    """Check that the GPU supports the number format in hardware.

    Torch would emulate bf16, which is many times slower.
    """
    resources, dtype = config.resources, config.precision.dtype
    device = find_device(resources.gpu_type)
    if resources.device == "cpu" or device is None or device.peak(dtype) is not None:
        return
    (major, minor), others = device.compute_capability, ("fp16", "fp32")
    instead = " or ".join(other for other in others if other != dtype and device.peak(other) is not None)
    # A GPU without the format is an NVIDIA GPU older than Ampere, or a GPU from another vendor.
    other = f" from {device.vendor}"
    if major:
        other = f", which has compute capability {major}.{minor}; bf16 needs 8.0 (Ampere) or higher"
    yield broken(
        config,
        "precision.dtype",
        f"is not supported by the hardware of resources.gpu_type = {device.name}{other}.\n"
        f"  Set precision.dtype: {instead}, or change gpu_type.",
    )


def attention_backend_serves(config: RunConfig) -> Problems:
    """Check that model.attention_backend supports the device, number format, dropout and head size.

    Torch would report a mismatch only at the first step.
    """
    model, resources = config.model, config.resources
    backend = model.attention_backend
    if backend in ("auto", "math"):
        return
    reason = None
    if resources.device == "cpu":
        if backend == "efficient":
            reason = "on a CPU, only the flash and math kernels exist"
        elif model.attention_dropout:
            dropout = f"attention_dropout is {model.attention_dropout:g}"
            reason = f"on a CPU, only the math kernel supports dropout, but {dropout}"
    elif backend == "flash":
        device = find_device(resources.gpu_type)
        head = model.resolved_kv_channels
        if config.precision.dtype == "fp32":
            reason = "on a GPU, flash attention needs bf16 or fp16, but precision.dtype is fp32"
        elif device and FLASH_GENERATION not in device.flash_attention:
            reason = f"flash attention needs an Ampere GPU or newer, but resources.gpu_type is {device.name}"
        elif head > FLASH_HEAD_SIZE:
            reason = (
                f"flash attention supports head sizes up to {FLASH_HEAD_SIZE}, but this model's head size is "
                f"{head}"
            )
        elif model.window_size is not None:
            reason = _flash_without_mask(config)
        else:
            context = config.parallel.context_parallel_size
            yield from problems_of(config, limits.flash_parts(context, lengths_problem(config)))
    if reason:
        yield broken(
            config,
            "model.attention_backend",
            f"does not support this run: {reason}.\n  Set attention_backend: auto.",
        )


def _flash_without_mask(config: RunConfig) -> str | None:
    """Return why the flash kernel cannot compute window attention on a GPU; None if it can."""
    model = config.model
    problem = lengths_problem(config) or ("compile: false, but compile is true" if model.compile else None)
    return problem and limits.needs_without_mask(f"window_size({model.window_size})", problem)


def fp8_has_its_units(config: RunConfig) -> Problems:
    """Check that a run with FP8 has a Hopper or newer GPU, and matrix dimensions that are multiples of 16."""
    if not config.precision.fp8 or config.resources.device == "cpu":
        return
    device = find_device(config.resources.gpu_type)
    if device and device.compute_capability < FP8_CAPABILITY:
        major, minor = device.compute_capability
        other = f"has compute capability {major}.{minor}" if major else f"is made by {device.vendor}"
        yield broken(
            config,
            "precision.fp8",
            "needs an NVIDIA GPU of generation Hopper (compute capability 9.0) or newer, but "
            f"resources.gpu_type = {device.name} {other}.",
            "Set fp8: false.",
        )
    parallel, shape = config.parallel, config.shape
    sides = limits.fp8_sides(shape, parallel.tensor_parallel_size)
    if config.model.kv_channels is None:
        # heads_fill_the_width already reports heads that do not divide hidden_size.
        sides = (side for side in sides if side.key != "model.kv_channels")
    yield from problems_of(config, sides)
    # With FPDT, the MLP processes one chunk at a time.
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
