"""The legal layouts of a model on a set of machines: the rules of config/rules/ for thousands of layouts.

The search and the what-if page vary the layout: how model and batch are sharded, ZeRO, recomputation and
offloading. The run fixes everything else (`Space`). The table in config/rules/combinations.py says which
settings can be combined, and the functions in config/rules/limits.py, which the rules call too, limit the
sizes. Both work on plain numbers, because checking a complete run would take milliseconds per layout.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.amounts import counted
from nbtrain.config.arithmetic.adapters import adapter_activations, adapter_sizes
from nbtrain.config.arithmetic.attention_kernels import lengths_problem
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.arithmetic.parameters import count_layers, largest_of
from nbtrain.config.arithmetic.stages import cut_evenly
from nbtrain.config.batch_schedule import Rampup, StepSizes
from nbtrain.config.deepspeed.ds_config import BUCKET_MULTIPLE
from nbtrain.config.load.edits import with_overrides, with_values
from nbtrain.config.rules import limits
from nbtrain.config.rules.combinations import KINDS, clashes
from nbtrain.config.rules.limits import Broken
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape
from nbtrain.planner.setup.setup import Place, Recompute, Setup, setup_of

RECOMPUTATIONS: tuple[Recompute, ...] = ("none", "selective", "full")


class Cut(NamedTuple):
    """Sizes of the kinds of parallelism: how a layout divides ("cuts") model and batch among ranks."""

    tensor: int
    pipeline: int
    ulysses: int
    data: int
    context: int = 1

    @property
    def flags(self) -> tuple[bool, ...]:
        """For each kind of parallelism, in the order of the fields: whether its size is more than 1."""
        return tuple(size > 1 for size in self)

    @property
    def sharing(self) -> int:
        """Number of ranks across which each sequence is split, by Ulysses or context parallelism."""
        return self.ulysses * self.context

    @property
    def parts(self) -> int:
        """Number of ranks that together hold one replica of the model."""
        return self.tensor * self.pipeline * self.sharing

    @property
    def settings(self) -> dict[str, Any]:
        """The sizes as overrides of a run YAML."""
        return {
            "parallel.tensor_parallel_size": self.tensor,
            "parallel.pipeline_parallel_size": self.pipeline,
            "parallel.ds_sequence_parallel_size": self.ulysses,
            "parallel.context_parallel_size": self.context,
            "parallel.data_parallel_size": self.data,
        }

    @property
    def words(self) -> str:
        """Description such as "TP 4 x PP 4 x DP 4"."""
        sizes = {
            "TP": self.tensor,
            "PP": self.pipeline,
            "Ulysses": self.ulysses,
            "CP": self.context,
            "DP": self.data,
        }
        return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one GPU"


class Options(NamedTuple):
    """Settings of a layout other than its sizes of parallelism and its micro-batch size."""

    zero_stage: int
    sequence_parallel: bool
    recompute: Recompute
    offload_optimizer: Place
    offload_param: Place
    hpz: bool

    @property
    def states(self) -> tuple[int, Place, Place, bool]:
        """The options that decide where model states are stored and how they are sharded."""
        return self.zero_stage, self.offload_optimizer, self.offload_param, self.hpz

    @property
    def settings(self) -> dict[str, Any]:
        """The options as overrides of a run YAML."""
        return {
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.zero_stage": self.zero_stage,
            "parallel.zero_hpz": self.hpz,
            "parallel.activation_checkpointing.granularity": self.recompute,
            "parallel.offload_optimizer.device": self.offload_optimizer,
            "parallel.offload_param.device": self.offload_param,
        }


PLAIN = Options(1, False, "none", "none", "none", False)


class Layout(NamedTuple):
    """A layout: its cut, options and micro-batch size."""

    cut: Cut
    micro_batch_size: int
    options: Options

    @property
    def settings(self) -> dict[str, Any]:
        """The layout as overrides of a run YAML."""
        micro_batch = {"batch.micro_batch_size": self.micro_batch_size}
        return {**micro_batch, **self.cut.settings, **self.options.settings}

    @property
    def words(self) -> str:
        """Description such as "TP 4 x PP 4 x DP 4, SP, ZeRO 1, micro-batch 2, full recomputation"."""
        options = self.options
        parts = [self.cut.words, *["SP"] * options.sequence_parallel]
        parts += [f"ZeRO {options.zero_stage}" + " with hpZ" * options.hpz]
        parts += [f"micro-batch {self.micro_batch_size}"]
        parts += [f"{options.recompute} recomputation"] * (options.recompute != "none")
        for what, place in (("optimizer", options.offload_optimizer), ("weights", options.offload_param)):
            parts += [f"{what} in {'host memory' if place == 'cpu' else 'NVMe'}"] * (place != "none")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Space:
    """The values that a layout search does not vary: the model, its batch, and the GPUs."""

    base: Setup
    """A setup with the fixed values. Its layout fields are ignored."""
    vocab_size: int
    """Vocabulary size before padding."""
    vocab_multiple: int
    """model.make_vocab_size_divisible_by. The padded vocabulary is a multiple of this number times TP."""
    batch_unit: int
    """Greatest common divisor of the run's global batch sizes, including those of a ramp-up."""
    kept: frozenset[str] = frozenset()
    """Names of the features in combinations.py that the run uses and no layout changes, such as FP8."""
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    hpz_partition: int | None = None
    """parallel.zero_hpz_partition_size; None means all ranks of a machine."""
    config: RunConfig | None = None
    """The run; None if only a model's shape was given, so that no run YAML can be written."""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Cache of runs, and of values that many layouts share: stage splits, padded shapes, bucket sizes."""

    @property
    def world_size(self) -> int:
        return self.base.nodes * self.base.devices_per_node

    def shape(self, tensor: int) -> Shape:
        """Return the model's shape, with its vocabulary padded for `tensor` tensor-parallel ranks."""
        if tensor not in self.memo:
            unit = self.vocab_multiple * tensor
            self.memo[tensor] = _padded(self.base.shape, -(-self.vocab_size // unit) * unit)
        return self.memo[tensor]

    def stages(self, tensor: int, pipeline: int, full: bool) -> tuple[tuple[int, ...], int]:
        """Return the number of blocks in each stage, and of parameters on a rank of the fullest stage."""
        key = (tensor, pipeline, full)
        if key not in self.memo:
            shape = self.shape(tensor)
            cut = tuple(cut_evenly(shape, pipeline, full))
            ends = ((layers, at == 0, at == pipeline - 1) for at, layers in enumerate(cut))
            most = max(count_layers(shape, *end, tensor).total for end in set(ends))
            self.memo[key] = cut, most
        return self.memo[key]

    def setup(self, layout: Layout) -> Setup:
        """Return the setup of a layout. It equals setup_of() for the run with the layout's settings."""
        key = ("setup", layout)
        if key not in self.memo:
            self.memo[key] = self._setup(layout)
        return self.memo[key]

    def _setup(self, layout: Layout) -> Setup:
        (tensor, pipeline, ulysses, data, context), micro, options = layout
        shape = self.shape(tensor)
        cut, most = self.stages(tensor, pipeline, options.recompute == "full")
        # As in config/deepspeed/ds_config.py, a bucket is never larger than one rank's gradients.
        bucket = -(-most // BUCKET_MULTIPLE) * BUCKET_MULTIPLE
        changes = dict(
            shape=shape,
            micro_batch_size=micro,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            stage_layers=cut,
            ulysses_size=ulysses,
            context_parallel_size=context,
            data_parallel_size=data,
            sequence_parallel=options.sequence_parallel,
            zero_stage=options.zero_stage,
            hpz_size=(self.hpz_partition or self.base.devices_per_node) if options.hpz else 1,
            offload_optimizer=options.offload_optimizer,
            offload_param=options.offload_param,
            recompute=options.recompute,
            reduce_bucket_elements=min(self.reduce_bucket, bucket),
            allgather_bucket_elements=min(self.allgather_bucket, bucket),
            nvme_buffer_elements=-(-largest_of(shape, tensor) // (data * ulysses * context)),
            **self.adapters(tensor),
        )
        # dataclasses.replace would read all fields of `base` again for each layout, which is slow.
        if "base" not in self.memo:
            self.memo["base"] = {one.name: getattr(self.base, one.name) for one in fields(Setup)}
        return Setup(**self.memo["base"] | changes)

    def adapters(self, tensor: int) -> dict[str, Any]:
        """Return the Setup fields of the run's adapters, sharded across `tensor` ranks; {} without lora."""
        if self.config is None or self.config.lora is None:
            return {}
        key = ("adapters", tensor)
        if key not in self.memo:
            self.memo[key] = {
                "adapter_sizes": adapter_sizes(self.config, tensor),
                "adapter_activations": adapter_activations(self.config, tensor),
            }
        return self.memo[key]

    def run(self, layout: Layout, check: bool = True) -> RunConfig:
        """Return the run with this layout.

        Raises ConfigError if only a model's shape was searched, and with `check` also if the run violates
        rules, which the error lists.
        """
        if self.config is None:
            raise ConfigError(
                "this search has only a model's shape, so it cannot write a run YAML. Search a run or a "
                "preset such as 13B instead."
            )
        key = ("run", layout)
        if check or key not in self.memo:
            self.memo[key] = with_overrides(self.config, settings_for(self.config, layout), check)
        return self.memo[key]


@functools.lru_cache(256)
def _padded(shape: Shape, vocab_size: int) -> Shape:
    """Return the shape with another padded vocabulary size.

    Equal results are the same object, which other caches look up faster.
    """
    return replace(shape, padded_vocab_size=vocab_size)


def settings_for(config: RunConfig, layout: Layout) -> dict[str, Any]:
    """Return the overrides that give a run this layout.

    Settings that are valid only for another layout are set to null or to their defaults.
    """
    settings = layout.settings
    # An explicit split into stages is valid for only one number of stages.
    settings["parallel.pipeline_stage_layers"] = None
    if not layout.options.hpz:
        settings["parallel.zero_hpz_partition_size"] = None
    for name in ("offload_optimizer", "offload_param"):
        place = settings[f"parallel.{name}.device"]
        if place != "nvme":
            settings[f"parallel.{name}.nvme_path"] = None
        if place == "none":
            settings[f"parallel.{name}.pin_memory"] = False
    return settings


def space_of(config: RunConfig) -> Space:
    """Return the space of a run: every layout of its model on its GPUs."""
    world = max(config.resources.nodes * config.resources.gpus_per_node, 1)
    plain = Layout(Cut(1, 1, 1, world), 1, PLAIN)
    open_run = with_values(config, settings_for(config, plain))
    kept = {kind.name for kind in KINDS if kind.key not in plain.settings and kind.present(open_run)}
    sizes = [config.batch.global_batch_size]
    match config.ramp:
        case Rampup(start_batch_size=start, batch_size_increment=increment):
            sizes += [start, increment]
        case StepSizes(parts=parts):
            sizes += [size for _, size in parts]
    return Space(
        setup_of(open_run),
        config.tokenizer.vocab_size,
        config.model.make_vocab_size_divisible_by,
        math.gcd(*sizes),
        frozenset(kept),
        config.parallel.reduce_bucket_size,
        config.parallel.allgather_bucket_size,
        config.parallel.zero_hpz_partition_size,
        config,
    )


def cuts(space: Space) -> Iterator[tuple[Cut, str | None]]:
    """Yield (cut, reason) for every cut whose sizes multiply to the number of GPUs.

    The reason says why the cut is illegal; None means that it is legal. Cuts with both Ulysses and context
    parallelism are not generated, because the table of combinations rejects them.
    """
    world = space.world_size
    for tensor in divisors(world):
        for pipeline in divisors(world // tensor):
            for sharing in divisors(rest := world // tensor // pipeline):
                found = [Cut(tensor, pipeline, sharing, rest // sharing)]
                if sharing > 1:
                    found.append(Cut(tensor, pipeline, 1, rest // sharing, sharing))
                for cut in found:
                    yield cut, next(cut_problems(space, cut), None)


def batch_limit(space: Space) -> str | None:
    """Return sentences that say how many replicas the batch allows; None if it allows one per GPU."""
    world, copies = space.world_size, space.batch_unit
    if world <= copies:
        return None
    base = space.base
    if copies == base.global_batch_size:
        allowed = f"global_batch_size({copies:,}) / micro_batch_size(1) allows at most {copies:,}"
    else:
        allowed = (
            f"the batch sizes of the ramp-up have the greatest common divisor {copies:,}, which with "
            f"micro_batch_size(1) allows at most {copies:,}"
        )
    return (
        f"The batch limits the number of model replicas (DP): {allowed}. With {world:,} GPUs, each replica "
        f"must then be divided across at least {-(-world // copies):,} GPUs (TP x PP x Ulysses or CP). Use "
        "fewer GPUs or larger batches."
    )


def cut_problems(space: Space, cut: Cut) -> Iterator[str]:
    """Yield the reasons why the trainer rejects the sizes of a cut, each as a clause."""
    if (world := math.prod(cut)) != space.world_size:
        yield f"it uses {counted(world, 'GPU')}, but the search has {space.world_size:,}"
    yield from (broken.clause for broken in _broken_by_cut(space, cut))
    if space.batch_unit % cut.data:
        yield (
            f"data_parallel_size({cut.data}) does not divide every batch size (greatest common divisor "
            f"{space.batch_unit})"
        )
    if not combinations(cut.flags, space.kept):
        yield from kind_problems(cut.flags, PLAIN, space.kept)


def _broken_by_cut(space: Space, cut: Cut) -> Iterator[Broken]:
    """Yield the limits of config/rules/limits.py that the sizes of a cut violate."""
    shape, (tensor, pipeline, ulysses, _, context) = space.base.shape, cut
    yield from limits.heads(shape, tensor, ulysses)
    yield from limits.query_groups(shape, tensor)
    yield from limits.mlp_width(shape, tensor)
    yield from limits.stages(shape, pipeline)
    yield from limits.sequence(shape, ulysses, context, space.base.fpdt_chunk_tokens)
    if space.base.fp8:
        yield from limits.fp8_sides(shape, tensor)
    if space.config is None:
        return
    if space.config.model.attention_backend == "flash" and space.config.resources.device != "cpu":
        yield from limits.flash_parts(context, lengths_problem(space.config))
    if space.config.dpo is not None:
        yield from limits.preference_answers(ulysses, context)
    if space.config.backend.kind == "kubernetes":
        sizes = {key.removeprefix("parallel."): size for key, size in cut.settings.items()}
        yield from limits.autotuned_ranks(space.config.backend.kubernetes, sizes)
    if (lora := space.config.lora) is not None:
        yield from limits.adapter_groups(lora, shape, tensor)
        yield from limits.four_bit_stages(lora, pipeline, 0)
        yield from limits.four_bit_blocks(lora, shape, tensor)


def option_problems(space: Space, cut: Cut, options: Options) -> Iterator[str]:
    """Yield the reasons why the trainer rejects these options with this cut, each as a clause."""
    yield from kind_problems(cut.flags, options, space.kept)
    yield from (broken.clause for broken in _broken_by_options(space, cut, options))


def _broken_by_options(space: Space, cut: Cut, options: Options) -> Iterator[Broken]:
    """Yield the limits of config/rules/limits.py that the options violate together with this cut."""
    if options.sequence_parallel:
        yield from limits.sharded_sequence(space.base.shape, cut.tensor, cut.ulysses, cut.context)
    if options.hpz and space.hpz_partition:
        yield from limits.hpz_partition(space.hpz_partition, cut.data * cut.sharing)
    if space.config is not None and space.config.lora is not None:
        yield from limits.four_bit_stages(space.config.lora, 1, options.zero_stage)
    if space.config is not None and space.config.parallel.prescale_gradients:
        data_type = space.config.parallel.communication_data_type
        yield from limits.prescaled_gradients(options.zero_stage, data_type)
    interval, layers = space.base.recompute_interval, space.base.shape.num_layers
    if options.recompute == "full" and interval > 1 and cut.pipeline <= layers:
        most = max(cut_evenly(space.shape(cut.tensor), cut.pipeline, recomputed=True))
        yield from limits.recomputed_layers(interval, most, cut.pipeline)


def micro_batch_problems(space: Space, cut: Cut, micro: int) -> Iterator[str]:
    """Yield the reasons why the trainer rejects a micro-batch size with this cut, each as a clause."""
    if space.batch_unit % (micro * cut.data):
        yield (
            f"micro_batch_size({micro}) * data_parallel_size({cut.data}) does not divide every batch size "
            f"(greatest common divisor {space.batch_unit})"
        )
    yield from (broken.clause for broken in broken_by_micro_batch(space, cut, micro))


def broken_by_micro_batch(space: Space, cut: Cut, micro: int) -> Iterator[Broken]:
    """Yield the limits of config/rules/limits.py that a micro-batch size violates with this cut."""
    if space.base.fp8:
        chunk = space.base.fpdt_chunk_tokens
        length, name = (chunk, "fpdt_chunk_tokens") if chunk else (space.base.shape.seq_length, "seq_length")
        yield from limits.fp8_tokens(micro, length, cut.ulysses, cut.context, name)
    if space.config is not None and space.config.backend.kind == "kubernetes":
        section, workers = space.config.backend.kubernetes, space.config.data.num_workers
        length, ranks = space.base.shape.seq_length, space.base.devices_per_node
        yield from limits.read_ahead(section, workers, micro, length, ranks)


def problems(space: Space, layout: Layout) -> list[str]:
    """Return every reason why the trainer rejects a layout, each as a clause; [] if the layout is legal."""
    found = [*cut_problems(space, layout.cut), *option_problems(space, layout.cut, layout.options)]
    return list(dict.fromkeys([*found, *micro_batch_problems(space, layout.cut, layout.micro_batch_size)]))


def legal_options(space: Space, cut: Cut) -> list[Options]:
    """Return the options that a legal cut may have."""
    key = ("options", cut)
    if key not in space.memo:
        broken: dict[tuple[Any, ...], bool] = {}
        space.memo[key] = found = []
        for one in combinations(cut.flags, space.kept):
            # The limits do not depend on where states are stored.
            kind = (one.zero_stage, one.sequence_parallel, one.recompute, one.hpz)
            if kind not in broken:
                broken[kind] = any(_broken_by_options(space, cut, one))
            if not broken[kind]:
                found.append(one)
    return space.memo[key]


def micro_batches(space: Space, cut: Cut) -> list[int]:
    """Return the micro-batch sizes that a legal cut may have, smallest first."""
    sizes = divisors(space.batch_unit // cut.data)
    return [micro for micro in sizes if not any(micro_batch_problems(space, cut, micro))]


def useful_micro_batches(space: Space, cut: Cut) -> list[int]:
    """Return the micro-batch sizes that have no factor in common with the number of ranks per sequence.

    With a common factor f, another layout is better: f times as many replicas, each with micro batches of 1/f
    the size, give each rank the same number of tokens and micro batches, and less traffic.
    """
    return [micro for micro in micro_batches(space, cut) if math.gcd(micro, cut.sharing) == 1]


@functools.lru_cache(256)
def combinations(flags: tuple[bool, ...], kept: frozenset[str]) -> tuple[Options, ...]:
    """Return the options that the table in combinations.py allows for cuts with these Cut.flags.

    `kept` are the names of the features that the run uses in any case (Space.kept).
    """
    places: tuple[Place, ...] = ("none", "cpu")
    every = itertools.product(range(4), (False, True), RECOMPUTATIONS, places, places, (False, True))
    return tuple(options for each in every if not kind_problems(flags, options := Options(*each), kept))


@functools.lru_cache(8192)
def kind_problems(flags: tuple[bool, ...], options: Options, kept: frozenset[str]) -> tuple[str, ...]:
    """Return why combinations.py rejects the options for cuts with these Cut.flags; () if it allows them."""
    cut = Cut(*(2 if flag else 1 for flag in flags))
    return tuple(clashes(_present(cut) | _present(options) | kept))


@functools.lru_cache(256)
def _present(part: Cut | Options) -> frozenset[str]:
    """Return the names of the features in combinations.py that a cut or options turn on."""
    values = part.settings
    return frozenset(kind.name for kind in KINDS if kind.key in values and kind.matches(values.__getitem__))
