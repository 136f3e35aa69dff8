"""The what-if view of a run: change one value of its layout at a time, and see the cost.

A WhatIf is a legal layout. `changed(name, value)` returns the nearest legal layout that has the value: DP
uses the remaining GPUs, and values that cannot be combined with the new value change as little as possible.
This module does not depend on a widget. lab/widgets/what_if.py draws the result of `shown()`, which takes a
few milliseconds.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.theme import MEMORY_COLORS, TIME_COLORS
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import BY_NAME
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.arithmetic.networks import NETWORK_BY_NAME, gigabits
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.load import Overrides
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.resources_section import ResourcesConfig
from nbtrain.planner.budget.disk import estimate_disk
from nbtrain.planner.memory import PARTS, MemoryEstimate, estimate, fit_rating, stage_parts
from nbtrain.planner.search.legal import (
    RECOMPUTATIONS,
    Cut,
    Layout,
    Options,
    Space,
    batch_limit,
    combinations,
    cuts,
    micro_batches,
    option_problems,
    problems,
    space_of,
)
from nbtrain.planner.search.search import rates_of, run_on, run_seconds
from nbtrain.planner.setup.setup import Place, Setup
from nbtrain.planner.time.network_use import network_use, uses_on
from nbtrain.planner.time.rates import Rates
from nbtrain.planner.time.step import StepTime, estimate_step

# Where model states are stored, from the fastest place to the largest.
PLACES: dict[str, tuple[Place, Place]] = {
    "on the GPU": ("none", "none"),
    "optimizer": ("cpu", "none"),
    "optimizer, weights": ("cpu", "cpu"),
}
# Distance between two layouts if one of these sizes is doubled or halved. Doubling DP adds no distance,
# because it follows from the other sizes.
WEIGHTS = {"tensor": 2.0, "pipeline": 2.0, "ulysses": 2.0, "context": 2.0, "micro": 1.0}
# The sizes that divide a replica. DP follows from them.
MODEL_SIZES = ("tensor", "pipeline", "ulysses", "context")
MOST_STAGES = 16
# Values of the control `network` besides the names in the network table: the network that is assumed for the
# GPU, and the bandwidth that the run sets.
ASSUMED, OWN = "assumed", "the run's own"
TIMES = {
    "compute": ("compute",),
    "recomputation": ("recompute",),
    "bubble": ("bubble",),
    "communication": ("tensor", "sequence", "pipeline", "data"),
    "optimizer and host": ("optimizer", "offload", "host", "chunks"),
}


class Control(NamedTuple):
    """A setting that the user can change, with its allowed values."""

    name: str
    label: str
    kind: str
    """Kind of control: "slider", "choice" or "switch"."""
    value: Any
    values: tuple[Any, ...]
    """Allowed values in order: each of them occurs in at least one legal layout."""
    free: tuple[bool, ...]
    """For each value: whether the layout stays legal if only this control and DP change."""
    hint: str


@dataclasses.dataclass(frozen=True, slots=True)
class WhatIf:
    """One legal layout of a run."""

    space: Space
    layout: Layout
    moved: tuple[str, ...] = ()
    """Values of other controls that the last change had to alter, such as "PP 4 -> 2"."""

    @property
    def config(self) -> RunConfig:
        """Configuration of the run with this layout. Raises ConfigError if it violates rules."""
        return self.space.run(self.layout)

    @property
    def gpu_type(self) -> str:
        """Name of the GPU type in the device table."""
        device = self.space.base.device
        assert device is not None
        return device.name

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return self.space.world_size

    @property
    def network(self) -> str:
        """Network between machines: a name in the network table, OWN (the run's bandwidth) or ASSUMED."""
        resources = self.space.config.resources if self.space.config else ResourcesConfig()
        if resources.network_bytes_per_second is not None:
            return OWN
        return resources.network or ASSUMED

    @property
    def lack(self) -> str:
        """Missing memory, e.g. "3.2 GiB too much"; "" if none is missing or the device is not known."""
        _, words, kind = fit_rating(estimate(self.space.setup(self.layout)))
        return words.removeprefix("no, ") if kind == "bad" else ""

    def value(self, name: str) -> Any:
        """Return the value of a control. Raises ConfigError for an unknown name."""
        cut, options = self.layout.cut, self.layout.options
        values = {
            "gpu_type": self.gpu_type,
            "gpus": self.gpus,
            "network": self.network,
            "tensor": cut.tensor,
            "pipeline": cut.pipeline,
            "ulysses": cut.ulysses,
            "context": cut.context,
            "data": cut.data,
            "micro": self.layout.micro_batch_size,
            "zero": options.zero_stage,
            "sequence": options.sequence_parallel,
            "recompute": options.recompute,
            "offload": _place(options),
            "hpz": options.hpz,
        }
        if name not in values:
            raise ConfigError(f"{name!r} is not a control. The controls are {', '.join(values)}.")
        return values[name]

    def changed(self, name: str, value: Any) -> "WhatIf":
        """Return the nearest legal layout in which a control has this value.

        Raises ConfigError if there is no such layout.
        """
        if self.value(name) == value:
            return dataclasses.replace(self, moved=())
        if name == "network":
            assert self.space.config is not None
            settings = {
                "resources.network": None if value == ASSUMED else value,
                "resources.network_bytes_per_second": None,
            }
            if value not in self.control(name).values or value == OWN:
                known = ", ".join(known for known in self.control(name).values if known != OWN)
                raise ConfigError(f"network = {value!r} is not in the network table. Known: {known}.")
            space = space_of(with_overrides(self.space.config, settings, check=False))
            found: Layout | None = self.layout
        elif name in ("gpu_type", "gpus"):
            changes = {"gpu_type": self.gpu_type, "gpus": self.gpus, name: value}
            assert self.space.config is not None
            per_node = self.space.config.resources.gpus_per_node
            per_node = per_node if changes["gpus"] % per_node == 0 else None
            config = run_on(
                self.space.config, changes["gpus"], per_node, changes["gpu_type"], keep_format=True
            )
            space = space_of(config)
            found = nearest(space, self.layout)
        else:
            space, found = self.space, nearest(self.space, self.layout, name, value)
        if found is None:
            legal = ", ".join(str(one) for one in self.control(name).values)
            raise ConfigError(
                f"no legal layout of {self.title} has {LABELS[name][0]} = {value}. Legal values are {legal}."
            )
        moved = [
            f"{LABELS[other][0]} {_shown(self.value(other))} -> {_shown(WhatIf(space, found).value(other))}"
            for other in LABELS
            if other != name and self.value(other) != WhatIf(space, found).value(other)
        ]
        return WhatIf(space, found, tuple(moved))

    def controls(self) -> list[Control]:
        """Return every control with its legal values."""
        return [self.control(name) for name in LABELS]

    def control(self, name: str) -> Control:
        """Return the control with this name."""
        label, kind, hint = LABELS[name]
        values = tuple(self._values(name))
        free = tuple(self._is_free(name, value) for value in values)
        return Control(name, label, kind, self.value(name), values, free, hint)

    @property
    def title(self) -> str:
        """Title of the page: the run and its devices."""
        name = self.space.config.name if self.space.config else "a model"
        return f"{name} on {self.gpus} x {self.gpu_type}"

    def shown(self) -> dict[str, Any]:
        """Return everything that a widget draws, as a JSON object.

        It has the three results (memory, time, disk), the controls, the memory of each stage, the time of
        each part, and table rows.
        """
        setup, rates = self.space.setup(self.layout), rates_of(self.space)
        memory, step = estimate(setup), estimate_step(setup, rates)
        rows = _rows(setup, memory, step)
        if network := network_use(setup, rates):
            rows += [list(row) for row in network.rows().items()]
        config = self.space.run(self.layout, check=False)
        disk = estimate_disk(config)
        seconds = run_seconds(config, setup, step)
        return {
            "title": self.title,
            "layout": self.layout.words,
            "words": [
                fit_rating(memory),
                ["time", amounts.duration(seconds) if seconds else "not known", ""],
                ["disk", amounts.size(disk.total_bytes), ""],
            ],
            "moved": list(self.moved),
            "controls": [control._asdict() for control in self.controls()],
            "memory": memory_bars(setup, memory),
            "time": time_bar(step),
            "networks": network_bars(setup, rates),
            "rows": rows,
        }

    def _values(self, name: str) -> Iterator[Any]:
        legal = legal_cuts(self.space)
        match name:
            case "gpu_type":
                yield from BY_NAME
            case "gpus":
                per_node = self.space.base.devices_per_node
                machines = {1, 2, 4, 8, 16, 32, 64, 128, self.space.base.nodes}
                sizes = {*(per_node * count for count in machines), *divisors(per_node)}
                yield from sorted(size for size in sizes if size <= max(16 * self.gpus, 64))
            case "network":
                yield ASSUMED
                if self.network == OWN:
                    yield OWN
                yield from NETWORK_BY_NAME
            case "tensor" | "pipeline" | "ulysses" | "context" | "data":
                yield from sorted({getattr(cut, name) for cut in legal})
            case "micro":
                yield from micro_batches(self.space, self.layout.cut)
            case "offload":
                options = self._every_option()
                yield from (words for words in PLACES if words in {_place(one) for one in options})
            case "recompute":
                yield from RECOMPUTATIONS
            case _:
                yield from sorted({getattr(one, _OPTION[name]) for one in self._every_option()})

    def _every_option(self) -> set[Options]:
        flags = {cut.flags for cut in legal_cuts(self.space)}
        return {options for each in flags for options in combinations(each, self.space.kept)}

    def _is_free(self, name: str, value: Any) -> bool:
        if name in ("gpu_type", "gpus", "network") or value == self.value(name):
            return True
        layout = _with(self.layout, name, value, self.space.world_size)
        return layout is not None and not problems(self.space, layout)


def what_if(
    run: str | RunConfig,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
) -> WhatIf:
    """Return the what-if view of the run's own layout, or of the nearest legal layout on other GPUs."""
    config = run_on(run, gpus, gpus_per_node, gpu_type, overrides, keep_format=True)
    space, parallel = space_of(config), config.parallel
    wanted = Layout(
        Cut(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.ds_sequence_parallel_size,
            parallel.data_parallel_size,
            parallel.context_parallel_size,
        ),
        config.batch.micro_batch_size,
        Options(
            parallel.zero_stage,
            parallel.sequence_parallel,
            parallel.activation_checkpointing.granularity,
            parallel.offload_optimizer.device,
            parallel.offload_param.device,
            parallel.zero_hpz,
        ),
    )
    found = wanted if not problems(space, wanted) else nearest(space, wanted)
    if found is None:
        number = amounts.counted(space.world_size, "GPU")
        limit = batch_limit(space) or "To see why, run `nbtrain search RUN --refused`."
        raise ConfigError(
            f"{config.name}: no layout on {number} is legal for this run's batch and attention heads. {limit}"
        )
    return WhatIf(space, found)


# Label, kind and hint of each control, in the order in which the controls are shown.
LABELS = {
    "gpu_type": ("GPU", "choice", "GPU type, from the device table"),
    "gpus": ("GPUs", "slider", "total number of GPUs, on machines of equal size"),
    "network": ("network", "choice", "network between machines, from the network table"),
    "data": ("DP", "slider", "data parallelism: replicas of the model"),
    "tensor": ("TP", "slider", "tensor parallelism: ranks across which each layer's matrices are sharded"),
    "pipeline": ("PP", "slider", "pipeline parallelism: stages of layers"),
    "ulysses": ("Ulysses", "slider", "Ulysses: ranks across which each sequence and its heads are split"),
    "context": ("CP", "slider", "context parallelism: ranks across which each sequence is split"),
    "micro": ("micro-batch", "slider", "sequences in one forward pass of a rank"),
    "zero": ("ZeRO", "choice", "states sharded across the replicas: 1 optimizer, 2 gradients, 3 weights"),
    "sequence": ("SP", "switch", "Megatron's sequence parallelism, inside the tensor-parallel group"),
    "recompute": ("recompute", "choice", "activations that are computed again in the backward pass"),
    "offload": ("offload", "choice", "states kept in host memory"),
    "hpz": ("hpZ", "switch", "ZeRO++: a second copy of the weights on each machine"),
}
_OPTION = {"zero": "zero_stage", "sequence": "sequence_parallel", "hpz": "hpz"}


def nearest(space: Space, wanted: Layout, name: str = "", value: Any = None) -> Layout | None:
    """Return the legal layout nearest to `wanted` in which the control `name` has `value`.

    Without a name, any legal layout is allowed. The result is None if there is no such layout.
    """
    best: tuple[float, Layout] | None = None
    by_flags: dict[tuple[bool, ...], list[tuple[float, Options]]] = {}
    for cut in legal_cuts(space):
        if name in Cut._fields and getattr(cut, name) != value:
            continue
        sizes = [size for size in micro_batches(space, cut) if name != "micro" or size == value]
        if not sizes:
            continue
        distance = sum(
            WEIGHTS[each] * _doublings(getattr(cut, each), getattr(wanted.cut, each)) for each in MODEL_SIZES
        )
        micro = min(sizes, key=lambda size: (_doublings(size, wanted.micro_batch_size), size))
        distance += WEIGHTS["micro"] * _doublings(micro, wanted.micro_batch_size)
        if best is not None and distance >= best[0]:
            continue
        if cut.flags not in by_flags:
            known = combinations(cut.flags, space.kept)
            scored = ((_apart(one, wanted.options), one) for one in known if _has(one, name, value))
            by_flags[cut.flags] = sorted(scored)
        for apart, options in by_flags[cut.flags]:
            if not any(option_problems(space, cut, options)):
                if best is None or distance + apart < best[0]:
                    best = distance + apart, Layout(cut, micro, options)
                break
    return best[1] if best else None


def legal_cuts(space: Space) -> list[Cut]:
    """Return the legal cuts of a search space, cached."""
    if "cuts" not in space.memo:
        space.memo["cuts"] = [cut for cut, reason in cuts(space) if reason is None]
    return space.memo["cuts"]


def _with(layout: Layout, name: str, value: Any, world: int) -> Layout | None:
    """Return the layout with one control's value changed, and DP adjusted so that all `world` GPUs are used.

    If no DP uses all GPUs, DP stays the same, and problems() rejects the result.
    """
    cut, micro, options = layout
    if name in MODEL_SIZES:
        cut = cut._replace(**{name: value})
        cut = cut._replace(data=world // cut.parts) if world % cut.parts == 0 else cut
    elif name == "data":
        cut = cut._replace(data=value)
    elif name == "micro":
        micro = value
    elif name == "offload":
        optimizer, param = PLACES[value]
        options = options._replace(offload_optimizer=optimizer, offload_param=param)
    else:
        options = options._replace(**{_OPTION.get(name, name): value})
    return Layout(cut, micro, options)


def _has(options: Options, name: str, value: Any) -> bool:
    match name:
        case "offload":
            return _place(options) == value
        case "recompute":
            return options.recompute == value
        case "zero" | "sequence" | "hpz":
            return getattr(options, _OPTION[name]) == value
    return True


def _apart(one: Options, other: Options) -> float:
    """Return the distance between two sets of options. nearest() adds the distance of the sizes (WEIGHTS)."""
    recompute = abs(RECOMPUTATIONS.index(one.recompute) - RECOMPUTATIONS.index(other.recompute))
    switches = (one.sequence_parallel != other.sequence_parallel) + (one.hpz != other.hpz)
    places = (one.offload_optimizer != other.offload_optimizer) + (one.offload_param != other.offload_param)
    return abs(one.zero_stage - other.zero_stage) + recompute + 0.5 * switches + 1.5 * places


def _doublings(one: int, other: int) -> float:
    return abs(math.log2(one / other))


def _place(options: Options) -> str:
    found = (options.offload_optimizer != "none", options.offload_param != "none")
    return {(True, True): "optimizer, weights", (True, False): "optimizer", (False, True): "weights"}.get(
        found, "on the GPU"
    )


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def memory_bars(setup: Setup, memory: MemoryEstimate) -> dict[str, Any]:
    """Return the bytes of each pipeline stage by part, and the memory of the device.

    With more than MOST_STAGES stages, only about nine stages and the fullest stage are included.
    """
    count = len(setup.layers_by_stage)
    at = (
        range(count)
        if count <= MOST_STAGES
        else sorted({*range(0, count, count // 8), count - 1, memory.stage})
    )
    stages = [(index, stage_parts(setup, index)) for index in at]
    return {
        "device": memory.device,
        "device_bytes": memory.device_bytes,
        "device_label": amounts.size(memory.device_bytes) if memory.device_bytes else "",
        "parts": [
            [part, MEMORY_COLORS[part]] for part in PARTS if any(parts.get(part) for _, parts in stages)
        ],
        "stages": [
            {
                "label": f"stage {index}" if count > 1 else "each GPU",
                "parts": parts,
                "total": amounts.size(sum(parts.values())),
            }
            for index, parts in stages
        ],
    }


def time_bar(step: StepTime | None) -> list[list[Any]]:
    """Return [part, seconds, text, color] for each part of a step; [] if the time is not known."""
    if step is None:
        return []
    found = [(name, sum(getattr(step, part) for part in parts)) for name, parts in TIMES.items()]
    return [[name, seconds, f"{seconds / step.seconds:.1%}", TIME_COLORS[name]] for name, seconds in found]


def network_bars(setup: Setup, rates: Rates | None) -> list[dict[str, Any]]:
    """Return bars that compare a step on four networks, each with the seconds that wait for the network.

    The text `total` also says what hpZ would save, if the layout can use it. The result is [] on one machine,
    or if the device's rates are not known.
    """
    found = []
    for use in uses_on(setup, rates):
        whole, waiting = use.step_seconds, use.waiting_seconds
        total = f"{amounts.step(whole)}, {use.waiting:.0%} waiting"
        if use.hpz is not None:
            total += f"; hpZ saves {use.hpz.saved:.0%}"
        parts = [
            ["computation and the rest", whole - waiting, TIME_COLORS["compute"]],
            ["waits for the network", waiting, TIME_COLORS["communication"]],
        ]
        found.append({"label": gigabits(use.nominal_bytes_per_second), "parts": parts, "total": total})
    return found


def _rows(setup: Setup, memory: MemoryEstimate, step: StepTime | None) -> list[list[str]]:
    shape = setup.shape
    count = count_layers(shape, shape.num_layers, first=True, last=True, tensor=1).total
    accumulation = setup.accumulation_steps
    rows = [
        ["model", f"{amounts.count(count)} parameters"],
        ["batch", f"{setup.micro_batch_size} x DP {setup.data_parallel_size} x {accumulation} accumulated"],
        ["GPU memory", f"{amounts.size(memory.total_bytes)} on the fullest GPU"],
    ]
    if memory.total_host_bytes:
        have = f" of {amounts.size(memory.host_bytes)}" if memory.host_bytes is not None else ""
        rows.append(["host memory", f"{amounts.size(memory.total_host_bytes)}{have} per rank"])
    if step is not None:
        peak = setup.device.peak(setup.dtype) if setup.device else None
        rate = setup.tokens_per_step / step.seconds
        rows.append(["step", f"{amounts.step(step.seconds)}, {amounts.count(rate)} tokens/s"])
        if peak:
            mfu = model_flops(shape) * rate / (setup.world_size * peak)
            rows.append(["MFU", f"{mfu:.0%} of {peak / 1e12:g} TFLOP/s in {setup.dtype}"])
        sent = step.tensor + step.sequence + step.pipeline + step.data
        rows.append(["bubble", f"{step.bubble / step.seconds:.1%} of a step"])
        rows.append(
            ["communication", f"{sent / step.seconds:.1%} of a step, not overlapped with computation"]
        )
    return rows
