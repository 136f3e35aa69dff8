"""The layout search: the legal layouts of a model on given GPUs, ranked by time and headroom.

    search("13B", gpus=64, gpu_type="A100-80GB")  ->  SearchResult: ranked and refused layouts, with reasons

The search follows the order in which practitioners decide: 16-bit numbers (bf16 if the GPU supports it), the
weakest recomputation that fits, ZeRO, ZeRO++'s second copy of the weights (hpZ) on several machines, and
offloading last, with as many replicas of the model (DP) as fit. If a layout fits with headroom, stronger
memory-saving techniques are not tried for it, because they would only be slower. The micro batch is increased
until it no longer fits.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from nbtrain.base.errors import ConfigError
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import BY_NAME, find_device, nearest_device_names
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.load import Overrides, load
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.rules.check import check_config
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape
from nbtrain.config.yaml_source import OverridePlace
from nbtrain.planner.memory import (
    SPARE_FRACTION,
    MemoryEstimate,
    estimate,
    estimate_if_fits,
    states_exceed_gpu,
)
from nbtrain.planner.search.legal import (
    PLAIN,
    RECOMPUTATIONS,
    Cut,
    Layout,
    Options,
    Space,
    batch_limit,
    broken_by_micro_batch,
    cuts,
    kind_problems,
    legal_options,
    micro_batches,
    problems,
    space_of,
    useful_micro_batches,
)
from nbtrain.planner.setup.setup import Place, Setup
from nbtrain.planner.time.duration import duration_at
from nbtrain.planner.time.rates import Rates, calibrated_rates, rates_of_setup, read_speed, with_network
from nbtrain.planner.time.step import StepTime, estimate_step

# A layout that leaves less than this fraction of the GPU free ranks lower, because the run fails if the
# estimate is slightly too small.
ROOMY_FRACTION = SPARE_FRACTION
GPUS_PER_NODE = 8
OFFLOADS: tuple[tuple[Place, Place], ...] = (("none", "none"), ("cpu", "none"), ("cpu", "cpu"))


@dataclass(frozen=True)
class ScoredLayout:
    """A layout with its memory and, if it fits, its time."""

    layout: Layout
    space: Space = field(compare=False, repr=False)
    """Search space that the layout belongs to."""
    estimated: MemoryEstimate | None
    """Memory of the layout; None if it exceeds the GPU's memory, because the estimate then stops early."""
    step: StepTime | None
    """Time of a step by part; None if the layout does not fit, or if the GPU's rates are not known."""
    fits: bool
    """Whether the layout fits the device's memory, and the host's memory if that is known."""

    @property
    def setup(self) -> Setup:
        return self.space.setup(self.layout)

    @functools.cached_property
    def memory(self) -> MemoryEstimate:
        """Memory of the layout, estimated on first use if necessary."""
        return self.estimated or estimate(self.setup)

    @property
    def headroom_bytes(self) -> int:
        """Bytes of device memory that the fullest rank leaves free; negative if the layout does not fit."""
        return (self.memory.device_bytes or 0) - self.memory.total_bytes

    @property
    def headroom(self) -> float:
        """Fraction of device memory that the fullest rank leaves free."""
        return self.headroom_bytes / (self.memory.device_bytes or 1)

    @property
    def seconds(self) -> float:
        """Seconds per step. Raises AssertionError if `step` is None."""
        assert self.step is not None
        return self.step.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: model FLOPs per second as a fraction of the GPUs' peak."""
        setup = self.setup
        peak = (setup.device and setup.device.peak(setup.dtype)) or float("inf")
        flops = model_flops(setup.shape) * setup.tokens_per_step
        return flops / (self.seconds * setup.world_size * peak)

    @property
    def cost(self) -> tuple[float, ...]:
        """Sort key, best layout first: by time (increased if there is little headroom), then by simplicity.

        Times within about one percent count as equal, because no estimate is that exact.
        """
        tight = max(ROOMY_FRACTION - self.headroom, 0.0)
        cut, options = self.layout.cut, self.layout.options
        percent = int(100 * math.log(self.seconds * (1 + tight)))
        offloads = (options.offload_optimizer != "none") + (options.offload_param != "none")
        simple = (offloads, cut.parts, options.zero_stage, options.hpz)
        return (percent, *simple, -round(self.headroom, 2), self.seconds)


@dataclass(frozen=True)
class RefusedGroup:
    """A group of layouts that are excluded from the ranking for the same reason."""

    words: str
    """Description of the excluded layouts."""
    count: int
    kind: str
    """Kind of reason: "rule", "memory" or "unneeded"."""
    why: str | tuple[ScoredLayout, ...]
    """The reason as a clause; for the kind "memory", the layouts that do not fit.

    `reason` then names the one of them that needs the least memory, and says how much it lacks.
    """

    @functools.cached_property
    def reason(self) -> str:
        """The reason as a clause. The memory of layouts that do not fit is estimated only on first use."""
        if isinstance(self.why, str):
            return self.why
        least = min(self.why, key=lambda one: one.memory.total_bytes)
        return f"the smallest, {least.layout.words.partition(', ')[2]}, {shortage(least)}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The layouts that fit (`ranked`, best first), and why the others were excluded (`refused`)."""

    space: Space
    name: str
    ranked: tuple[ScoredLayout, ...]
    refused: tuple[RefusedGroup, ...]
    estimated: int
    """Number of layouts whose memory was estimated."""

    @property
    def best(self) -> ScoredLayout | None:
        return self.ranked[0] if self.ranked else None

    @property
    def limit(self) -> str | None:
        """Sentences that explain that the batch is too small for any legal layout; None if this is not so."""
        return None if self.estimated else batch_limit(self.space)


def search(
    run: "str | RunConfig | Shape",
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
    batch: int = 1024,
) -> SearchResult:
    """Search the layouts of a run, a preset such as "13B" or a model shape.

    If `gpus`, `gpus_per_node` or `gpu_type` is None, the run's own value is used. `batch` is the global batch
    size, used only for a shape. Raises ConfigError if the GPUs are not known, or if the run violates a rule
    that no layout can fix.
    """
    if isinstance(run, Shape):
        space, name = shape_space(run, gpus, gpus_per_node, gpu_type, batch), "a model"
    else:
        config = run_on(run, gpus, gpus_per_node, gpu_type, overrides)
        space, name = space_of(config), config.name
    result = search_space(space, name)
    if result.best is not None and space.config is not None:
        check_config(space.run(result.best.layout, check=False))
    return result


def run_on(
    run: str | RunConfig,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
    keep_format: bool = False,
) -> RunConfig:
    """Return a run or a preset on other GPUs, in bf16 if they support it, else in fp16.

    A number format set by an override is kept. With `keep_format`, the run's own format is kept too if the
    GPU supports it.
    """
    config = load(run, overrides, check=False)
    resources = config.resources
    name = resources.gpu_type if gpu_type is None else gpu_type
    device = find_device(name)
    if device is None:
        raise ConfigError(_unknown(config, name))
    if gpus is None:
        if resources.device == "cpu":
            raise ConfigError(
                f"{config.name} is a run on CPUs. To search layouts, give the number of GPUs: --gpus 8, "
                "or in a notebook gpus=8."
            )
        gpus = resources.nodes * resources.gpus_per_node
        gpus_per_node = resources.gpus_per_node if gpus_per_node is None else gpus_per_node
    elif gpus_per_node is None and resources.nodes > 1 and resources.gpu_type == device.name:
        # A run on several machines specifies how many GPUs each machine has.
        gpus_per_node = resources.gpus_per_node if gpus % resources.gpus_per_node == 0 else None
    nodes, per_node = _machines(gpus, gpus_per_node)
    changes = {
        "resources.device": "gpu",
        "resources.gpu_type": device.name,
        "resources.nodes": nodes,
        "resources.gpus_per_node": per_node,
    }
    typed = isinstance(config._origins.get("precision.dtype"), OverridePlace)
    if not typed and not (keep_format and device.peak(config.precision.dtype)):
        changes["precision.dtype"] = "bf16" if device.peak("bf16") else "fp16"
        changes["precision.autocast"] = config.precision.autocast and bool(device.peak("bf16"))
    return with_overrides(config, changes, check=False)


def shape_space(
    shape: Shape, gpus: int | None, gpus_per_node: int | None, gpu_type: str | None, batch: int
) -> Space:
    """Return the search space of a model shape, in bf16 if the GPU supports it, else in fp16."""
    device = find_device(gpu_type)
    if device is None or gpus is None:
        raise ConfigError(
            'a model shape does not specify GPUs. Pass gpus and gpu_type, e.g. gpus=64, gpu_type="A100-80GB".'
        )
    nodes, per_node = _machines(gpus, gpus_per_node)
    base = Setup(
        shape=shape,
        device=device,
        nodes=nodes,
        devices_per_node=per_node,
        global_batch_size=batch,
        dtype="bf16" if device.peak("bf16") else "fp16",
        logits_chunk_tokens=1024,
    )
    return Space(base, shape.padded_vocab_size, 128, batch, frozenset({base.dtype}))


def _machines(gpus: int, per_node: int | None) -> tuple[int, int]:
    for name, value in (("gpus", gpus), ("gpus_per_node", per_node)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value} must be at least 1.")
    per_node = per_node or min(gpus, GPUS_PER_NODE)
    if gpus < per_node:
        return 1, gpus
    if gpus % per_node:
        near = ", ".join(
            str(count) for count in (gpus // per_node * per_node, -(-gpus // per_node) * per_node)
        )
        raise ConfigError(f"gpus = {gpus} must be a multiple of gpus_per_node({per_node}). Nearest: {near}.")
    return gpus // per_node, per_node


def _unknown(config: RunConfig, name: str | None) -> str:
    if name is None:
        return (
            f"{config.name} does not specify a GPU type. Pass one, e.g. --gpu-type A100-80GB, or in a "
            'notebook gpu_type="A100-80GB".'
        )
    # "H100-80GB" is a longer name for the table's H100, but "A100" is not a longer name for A10.
    shorter = [known for known in BY_NAME if name.lower().startswith(f"{known.lower()}-")]
    near = shorter or nearest_device_names(name)
    which = f"Nearest: {', '.join(near)}" if near else f"Known: {', '.join(BY_NAME)}"
    return f"GPU type {name!r} is not in the device table. {which}."


def search_space(space: Space, name: str = "a model") -> SearchResult:
    """Score and rank the useful legal layouts of a search space."""
    illegal: dict[str, list[str]] = {}
    inside: list[Cut] = []
    wide: list[Cut] = []
    for cut, reason in cuts(space):
        if reason is not None:
            illegal.setdefault(reason, []).append(cut.words)
        else:
            (inside if cut.tensor <= space.base.devices_per_node else wide).append(cut)
    tried = [one for cut in inside for one in try_cut(space, cut)]
    if not any(one.fits for one in tried):
        tried += [one for cut in wide for one in try_cut(space, cut)]
        wide = []
    refused = [RefusedGroup(_some(words), len(words), "rule", reason) for reason, words in illegal.items()]
    refused += _illegal_options(space, inside)
    refused += _illegal_micro_batches(space, inside)
    refused += _too_large(tried)
    if wide:
        reason = (
            f"their tensor-parallel groups span machines (of {space.base.devices_per_node} GPUs each), which "
            "is slower, and layouts whose groups are inside one machine fit"
        )
        refused.append(RefusedGroup(_some([cut.words for cut in wide]), len(wide), "unneeded", reason))
    if space.base.host_memory_bytes is None:
        reason = "the host memory is not known; set resources.memory_per_node_bytes"
        refused.append(RefusedGroup("optimizer or weights in host memory", len(inside), "memory", reason))
    refused += _not_estimated(space, inside, len(tried))
    ranked = sorted((one for one in tried if one.step is not None), key=lambda one: one.cost)
    return SearchResult(space, name, tuple(ranked), tuple(refused), len(tried))


def _illegal_options(space: Space, legal: list[Cut]) -> Iterator[RefusedGroup]:
    """Yield the ZeRO stages, with and without hpZ, that combinations.py rejects, grouped by reason.

    Only `legal` cuts (sizes of parallelism) are considered.
    """
    found: dict[str, list[str]] = {}
    for flags, count in Counter(cut.flags for cut in legal).items():
        for zero, hpz in itertools.product(range(4), (False, True)):
            options = PLAIN._replace(zero_stage=zero, hpz=hpz)
            for reason in kind_problems(flags, options, space.kept)[:1]:
                found.setdefault(reason, []).extend([f"ZeRO {zero}{' with hpZ' * hpz}"] * count)
    for reason, words in found.items():
        yield RefusedGroup(", ".join(dict.fromkeys(words)), len(words), "rule", reason)


def _illegal_micro_batches(space: Space, legal: list[Cut]) -> Iterator[RefusedGroup]:
    """Yield the micro-batch sizes that a limit of config/rules/limits.py rejects, grouped by limit.

    Only `legal` cuts (sizes of parallelism) are considered. The reason of each group is the limit's message
    for the smallest rejected size.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for cut in legal:
        for micro in divisors(space.batch_unit // cut.data):
            for broken in itertools.islice(broken_by_micro_batch(space, cut, micro), 1):
                found.setdefault(broken.key, []).append((micro, broken.clause))
    for sizes in found.values():
        words = [f"micro-batch {micro}" for micro in sorted(micro for micro, _ in sizes)]
        yield RefusedGroup(_some(words), len(sizes), "rule", min(sizes)[1])


def _not_estimated(space: Space, legal: list[Cut], tried: int) -> Iterator[RefusedGroup]:
    """Yield one group with all legal layouts that were not estimated; nothing if all were.

    `tried` is the number of estimated layouts.
    """
    every = sum(len(legal_options(space, cut)) * len(micro_batches(space, cut)) for cut in legal)
    if every > tried:
        reason = (
            "they were not estimated, because they cannot be the best. A layout is skipped if a cheaper "
            f"technique already leaves {ROOMY_FRACTION:.0%} headroom, if a smaller micro batch does not fit, "
            "or if SP is off although it costs nothing. It is also skipped if it splits sequences where more "
            "replicas with a smaller micro batch do the same with less traffic, or if its ZeRO 2, ZeRO 3 or "
            "hpZ would neither shard nor offload anything"
        )
        yield RefusedGroup(
            "more memory-saving techniques or larger micro batches than needed",
            every - tried,
            "unneeded",
            reason,
        )


def _too_large(tried: list[ScoredLayout]) -> Iterator[RefusedGroup]:
    """Group the tried layouts that do not fit by cut (sizes of parallelism), and yield the groups."""
    by_cut: dict[Cut, list[ScoredLayout]] = {}
    for one in tried:
        by_cut.setdefault(one.layout.cut, []).append(one)
    for cut, scored in by_cut.items():
        failing = tuple(one for one in scored if not one.fits)
        if not failing:
            continue
        if len(failing) < len(scored):
            number = f"{len(failing)} of {len(scored)} layouts tried"
        else:
            number = "all layouts"
        yield RefusedGroup(f"{cut.words}: {number}", len(failing), "memory", failing)


def shortage(one: ScoredLayout) -> str:
    """Return a clause that says how much memory a layout needs, and how much of that is too much.

    The layout must not fit. An example is "needs 90 GiB on the device, 10 GiB too much; the largest part is
    weights, 40 GiB".
    """
    memory = one.memory
    if not memory.fits:
        need, have, parts = memory.total_bytes, memory.device_bytes or 0, memory.parts
        where = f"on the device (stage {memory.stage})" if one.layout.cut.pipeline > 1 else "on the device"
    else:
        need, have, parts = memory.total_host_bytes, memory.host_bytes or 0, memory.host_parts
        where = "of host memory per rank"
    part = max(parts, key=lambda name: parts[name])
    return (
        f"needs {amounts.size(need)} {where}, {amounts.size(need - have)} too much; the largest part is "
        f"{part}, {amounts.size(parts[part])}"
    )


def _some(words: list[str]) -> str:
    """Join the first three distinct entries as text, followed by the number of other distinct entries."""
    unique = list(dict.fromkeys(words))
    more = len(unique) - 3
    return "; ".join(unique[:3]) + (f"; {more} more" if more > 0 else "")


def why_not(result: SearchResult, layout: Layout) -> str:
    """Explain why a layout is not the best, in sentences.

    The reasons are a violated rule, too little memory, an unneeded technique, or its place in the ranking.
    """
    space = result.space
    if broken := problems(space, layout):
        return f"The trainer rejects this layout: {'; '.join(broken)}."
    one = score(space, layout)
    if not one.fits:
        return f"This layout does not fit: it {shortage(one)}."
    ahead = sum(other.cost < one.cost for other in result.ranked)
    best = result.best
    if best is None or not ahead:
        return "This is the best layout."
    slower = one.seconds / best.seconds - 1
    listed = any(other.layout == layout for other in result.ranked)
    are_ahead = "1 ranked layout is better" if ahead == 1 else f"{ahead} ranked layouts are better"
    text = (
        f"This layout fits, with {one.headroom:.0%} headroom, and takes {amounts.step(one.seconds)} per "
        f"step: {slower:+.0%} compared with the best layout, {best.layout.words}. {are_ahead}."
    )
    if not listed:
        text += " This layout was not ranked, because it uses a technique that it does not need."
    return text


def try_cut(space: Space, cut: Cut) -> Iterator[ScoredLayout]:
    """Estimate the useful layouts of one cut (sizes of parallelism); yield them, also if they do not fit.

    For each micro-batch size, memory-saving options are tried from weak to strong until a layout fits with
    headroom. Larger micro batches are not tried after a size for which nothing fits.
    """
    families: dict[tuple[int, bool, bool], set[Options]] = {}
    for options in legal_options(space, cut):
        if is_worth(space, cut, options):
            key = (options.zero_stage, options.sequence_parallel, options.hpz)
            families.setdefault(key, set()).add(options)
    sizes, places = useful_micro_batches(space, cut), offloads(space)
    for family, known in families.items():
        measures = [options for options in _measures(places, *family) if options in known]
        for micro in sizes:
            found = False
            for options in measures:
                one = score(space, Layout(cut, micro, options))
                yield one
                found = found or one.fits
                if one.fits and one.headroom >= ROOMY_FRACTION:
                    break
            if not found:
                # A larger micro batch needs more memory in every part.
                break


def is_worth(space: Space, cut: Cut, options: Options) -> bool:
    """Return whether options can be useful with this cut.

    They are not useful if a ZeRO stage or hpZ neither shards nor offloads anything, or if tensor-parallel
    ranks do not use sequence parallelism, which costs nothing.
    """
    ranks = cut.data * cut.sharing
    if ranks == 1 and options.zero_stage > 1 and options.offload_optimizer == "none":
        # With offloading, ZeRO 2 also keeps a single rank's gradients in host memory, and ZeRO 3 its weights.
        return False
    if options.hpz and (space.base.nodes == 1 or ranks <= space.base.devices_per_node):
        return False
    # Sequence parallelism sends as many bytes and keeps fewer activations (arXiv:2205.05198, section 4.2).
    divides = space.base.shape.seq_length % (cut.tensor * cut.sharing) == 0
    return options.sequence_parallel or cut.tensor == 1 or not divides


@functools.lru_cache(256)
def _measures(
    places: tuple[tuple[Place, Place], ...], zero: int, sequence: bool, hpz: bool
) -> tuple[Options, ...]:
    """Return the combinations of recomputation and offloading, from weak to strong.

    Stronger recomputation is tried before offloading. The other options are fixed: ZeRO stage, sequence
    parallelism and hpZ.
    """
    return tuple(
        Options(zero, sequence, recompute, *place, hpz)
        for place, recompute in itertools.product(places, RECOMPUTATIONS)
    )


def offloads(space: Space) -> tuple[tuple[Place, Place], ...]:
    """Return the places to try for (optimizer state, weights): the device or host memory.

    The fastest pair of places comes first. Host memory is included only if its size is known.
    """
    return OFFLOADS if space.base.host_memory_bytes is not None else OFFLOADS[:1]


def score(space: Space, layout: Layout) -> ScoredLayout:
    """Estimate the memory of a legal layout and, if it fits, its step time."""
    if states_exceed(space, layout):
        return ScoredLayout(layout, space, None, None, False)
    setup = space.setup(layout)
    memory = estimate_if_fits(setup)
    fits = memory is not None and bool(memory.fits) and memory.fits_host is not False
    return ScoredLayout(layout, space, memory, estimate_step(setup, rates_of(space)) if fits else None, fits)


def states_exceed(space: Space, layout: Layout) -> bool:
    """Return whether a layout's model states alone exceed the GPU's memory.

    The result is cached, because layouts that differ only in the micro batch, in Ulysses or context
    parallelism, or in selective recomputation have the same states.
    """
    cut, options = layout.cut, layout.options
    is_full = options.recompute == "full"
    key = ("states", cut.tensor, cut.pipeline, cut.data * cut.sharing, is_full, options.states)
    if key not in space.memo:
        space.memo[key] = states_exceed_gpu(space.setup(layout))
    return space.memo[key]


def rates_of(space: Space) -> Rates | None:
    """Return the rates of the search's GPU; None if the GPU is not known.

    If this machine has that GPU and was calibrated (`nbtrain calibrate`), its measured rates are used.
    """
    if "rates" not in space.memo:
        device, base = space.base.device, space.base
        known = device is not None and device.peak(base.dtype) is not None
        rates = rates_of_setup(base) if known else None
        rates = calibrated_rates(rates, base) if rates else None
        if rates is not None and space.config is not None:
            rates = with_network(rates, space.config, use_measured=True)
        space.memo["rates"] = rates
    return space.memo["rates"]


def run_seconds(config: RunConfig, setup: Setup, step: StepTime | None) -> float | None:
    """Return the seconds of a whole run whose steps take `step`, including validation and checkpoints.

    The result is None if the time of a step is not known.
    """
    found = duration_at(config, read_speed(config, use_measured=False, setup=setup))
    if found.seconds is None or step is None or found.step is None:
        return None
    # If `step` comes from a calibration, the run's time is scaled in proportion.
    return found.seconds * step.seconds / found.step.seconds
