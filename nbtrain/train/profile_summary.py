"""What a profile says, in a page: shares of the time, the costliest operators, the memory over time.

    chrome trace of torch.profiler -> ProfileSummary -> rank<r>.step<n>.txt, .json and .svg (profile_picture.py)

Every moment of the profiled steps goes to one category, so that the shares add up to the whole:

    on a GPU   to what a kernel does that runs then; of several at once to the first in CATEGORIES, so that
               communication is only what no computation hides; idle is when nothing runs
    on a CPU   to the innermost operator of the training's thread; idle is Python between the operators, but
               communication where a collective is under way on gloo's threads

What runs inside attention or the optimizer's step counts for these. Times are own times: an operator's without those it calls.
"""

import bisect
import collections
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbtrain import amounts, files
from nbtrain.train.profile_picture import picture

CATEGORIES = (
    "matmul",
    "attention",
    "norm, elementwise",
    "optimizer",
    "copies",
    "other",
    "communication",
    "data",
    "idle",
)
TOP_OPERATORS = 25
TIMELINE_POINTS = 400
PART_PREFIX = "nbtrain: "
"""Before the name of a step's part (throughput.py) in the trace."""

Interval = tuple[float, float]

# The first that is found in an operator's or a kernel's name, lower case, decides.
_RULES = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        ("communication", r"nccl|gloo|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_|c10d"),
        ("attention", r"flash|fmha|attention|attn|blockedbackward|softmax_backward_data|sdpa"),
        ("optimizer", r"adam|optimizer\.|multi_tensor|foreach_norm|clip_grad"),
        ("data", r"dataloader"),
        (
            "matmul",
            r"gemm|gemv|matmul|cublas|cutlass|nvjet|aten::(mm|addmm|bmm|baddbmm|linear|_scaled_mm)\b|mkldnn_linear",
        ),
        (
            "copies",
            r"memcpy|memset|copy|clone|contiguous|pin_memory|aten::(to|cat|_to_copy|fill_|zero_)\b|catarray|\bfill",
        ),
        (
            "norm, elementwise",
            r"norm|elementwise|softmax|gelu|dropout|triton_|reduce_kernel|vectorized|bernoulli|"
            r"aten::(add|sub|mul|div|sum|exp|neg|where|native_|mean|pow|sqrt|tanh|bitwise|lt|le|gt|ge|eq|ne)",
        ),
    )
)
# An operator that lies in one of these, at any depth, counts for it.
_LASTING = {"attention", "optimizer", "communication", "data"}


@dataclass
class Operator:
    """Calls of one operator, products with one set of shapes."""

    name: str
    category: str
    calls: int
    seconds: float
    flops: float = 0.0
    """Of all calls; 0 where it is no matrix product or the shapes were not recorded."""


@dataclass
class ProfileSummary:
    """One cycle of the profiler on one rank."""

    title: str
    device: str
    """cuda or cpu."""
    steps: int
    seconds: float
    """Of all profiled steps."""
    categories: dict[str, float]
    """Seconds by name in CATEGORIES; they add up to `seconds`."""
    hidden_communication_seconds: float
    """Communication behind computation, on a GPU."""
    parts: dict[str, float]
    """Seconds by part of the step, on the host's clock; what is in none is left out."""
    operators: list[Operator]
    """The costliest ones."""
    flops: float
    """Of all matrix products, by their shapes."""
    memory: list[tuple[float, int]]
    """(seconds from the first step's start, bytes allocated); on CPU since the profile began."""
    peak_memory_bytes: int
    peak_memory_seconds: float

    def text(self) -> str:
        """The page."""
        lines = [
            f"{self.title} | {self.device} | {amounts.counted(self.steps, 'step')}, {self.seconds:.4g} s, "
            f"{self.seconds / self.steps * 1e3:.4g} ms a step",
            "",
            *_table("where the time goes", self.categories, self.seconds),
        ]
        if self.hidden_communication_seconds:
            lines.append(
                f"  and {self.hidden_communication_seconds:.4g} s of communication behind computation"
            )
        if self.parts:
            lines += ["", *_table("parts of the step, by the host's clock", self.parts, self.seconds)]
        if self.flops:
            rate = self.flops / self.seconds / 1e12
            lines += [
                "",
                f"matrix products: {self.flops / 1e12:.4g} TFLOP, {rate:.4g} TFLOP/s over the steps",
            ]
        lines += [
            "",
            f"{'own ms':>10}  {'share':>6}  {'calls':>7}  {'TFLOP/s':>8}  {'category':<17}  operator",
        ]
        for operator in self.operators:
            rate_text = f"{operator.flops / operator.seconds / 1e12:8.4g}" if operator.flops else " " * 8
            lines.append(
                f"{operator.seconds * 1e3:>10.3f}  {operator.seconds / self.seconds:>6.1%}  {operator.calls:>7,}  "
                f"{rate_text}  {operator.category:<17}  {operator.name}"
            )
        if self.memory:
            moment = f"{self.peak_memory_seconds * 1e3:.4g} ms after the first step's start"
            since = "" if self.device == "cuda" else ", counted from the profile's start"
            lines += ["", f"memory: peak {amounts.size(self.peak_memory_bytes)}, {moment}{since}"]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_summary(trace_path: Path, title: str) -> Path:
    """Read a chrome trace and write <stem>.txt, <stem>.json and <stem>.svg beside it; the path of the text."""
    with gzip.open(trace_path) as stream:
        summary = summarize(json.load(stream), title)
    stem = trace_path.name.removesuffix(".trace.json.gz")
    files.write_json(trace_path.with_name(f"{stem}.json"), summary.to_dict())
    files.write_text(trace_path.with_name(f"{stem}.svg"), picture(summary.to_dict()))
    target = trace_path.with_name(f"{stem}.txt")
    files.write_text(target, summary.text())
    return target


def summarize(trace: dict[str, Any], title: str = "profile") -> ProfileSummary:
    """The summary of a chrome trace. Raises ValueError where no whole step is in it."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    steps = [event for event in events if _is_step(event) and event.get("cat") == "user_annotation"]
    if not steps:
        raise ValueError("no step is in this profile: profile.active_steps were never reached")
    window = min(step["ts"] for step in steps), max(step["ts"] + step["dur"] for step in steps)
    parts = _parts(events)
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    of_operators = _on_device(events, kernels, parts) if kernels else _on_host(events, steps[0]["tid"], parts)
    stretches: dict[str, list[Interval]] = {name: [] for name in CATEGORIES}
    operators: dict[tuple[str, str], Operator] = {}
    for name, category, interval, flops, is_call in of_operators:
        interval = max(interval[0], window[0]), min(interval[1], window[1])
        if interval[1] <= interval[0]:
            continue
        stretches[category].append(interval)
        operator = operators.setdefault((name, category), Operator(name, category, 0, 0.0))
        operator.calls += is_call
        operator.seconds += (interval[1] - interval[0]) / 1e6
        operator.flops += flops
    categories, hidden = _shares(stretches, window)
    memory = _memory(trace["traceEvents"], window, "cuda" if kernels else "cpu")
    peak = max(memory, key=lambda point: point[1], default=(0.0, 0))
    costliest = sorted(operators.values(), key=lambda operator: -operator.seconds)
    return ProfileSummary(
        title=title,
        device="cuda" if kernels else "cpu",
        steps=len(steps),
        seconds=(window[1] - window[0]) / 1e6,
        categories=categories,
        hidden_communication_seconds=hidden,
        parts={
            name: sum(_overlap(interval, window) for interval in intervals) / 1e6
            for name, intervals in parts.items()
        },
        operators=costliest[:TOP_OPERATORS],
        flops=sum(operator.flops for operator in operators.values()),
        memory=_thinned(memory),
        peak_memory_bytes=peak[1],
        peak_memory_seconds=peak[0],
    )


def category_of(name: str) -> str:
    """By the name of an operator or a kernel."""
    lower = name.lower()
    return next((category for category, pattern in _RULES if pattern.search(lower)), "other")


# --- what ran when ------------------------------------------------------------------------------------------------

Stretch = tuple[str, str, Interval, float, bool]
"""(name, category, when, FLOPs, whether a call begins with it)."""


def _on_host(
    events: list[dict[str, Any]], thread: Any, parts: dict[str, list[Interval]]
) -> Iterator[Stretch]:
    """The innermost operators of the training's thread, and the collectives on the others."""
    for event in events:
        if event["tid"] != thread and category_of(event["name"]) == "communication":
            yield _name(event), "communication", (event["ts"], event["ts"] + event["dur"]), 0.0, True
    own = [
        event
        for event in events
        if event["tid"] == thread and event.get("cat") in ("cpu_op", "user_annotation")
    ]
    own = [event for event in own if not _is_step(event) and not event["name"].startswith(PART_PREFIX)]
    # Outer before inner.
    own.sort(key=lambda event: (event["ts"], -event["dur"]))
    open_events: list[tuple[dict[str, Any], str, str, float]] = []
    reached = 0.0
    for event in [*own, {"ts": float("inf"), "dur": 0.0, "name": ""}]:
        while open_events and open_events[-1][3] <= event["ts"]:
            _, name, category, end = open_events.pop()
            if end > reached:
                yield name, category, (reached, end), 0.0, False
                reached = end
        if open_events and event["ts"] > reached:
            yield open_events[-1][1], open_events[-1][2], (reached, event["ts"]), 0.0, False
        if event["name"]:
            outer = open_events[-1][2] if open_events else ""
            category = outer if outer in _LASTING else category_of(event["name"])
            if category != "communication" and _is_in(event["ts"], parts.get("optimizer", [])):
                category = "optimizer"
            end = event["ts"] + event["dur"]
            if open_events:
                # Clocks are rounded: an inner event may seem to end behind its outer one.
                end = min(end, open_events[-1][3])
            reached = event["ts"]
            open_events.append((event, _name(event), category, end))
            # A stretch without length carries what counts once a call; summarize() wants some, so a nanosecond is given.
            yield (
                _name(event),
                category,
                (event["ts"], min(end, event["ts"] + 1e-3)),
                product_flops(event),
                True,
            )
            reached = min(end, event["ts"] + 1e-3)


def _on_device(
    events: list[dict[str, Any]], kernels: list[dict[str, Any]], parts: dict[str, list[Interval]]
) -> Iterator[Stretch]:
    """Kernels and copies, named by the operator that launched them."""
    launchers = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    launched_at = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    told: set[Any] = set()
    for kernel in kernels:
        arguments = kernel.get("args", {})
        operator = launchers.get(arguments.get("External id"))
        category = category_of(kernel["name"])
        if category in ("other", "norm, elementwise", "copies") and operator is not None:
            by_operator = category_of(operator["name"])
            category = by_operator if by_operator in _LASTING or category == "other" else category
        moment = launched_at.get(arguments.get("correlation"))
        if category != "communication" and moment is not None and _is_in(moment, parts.get("optimizer", [])):
            category = "optimizer"
        flops = 0.0
        if operator is not None and arguments["External id"] not in told:
            # An operator may launch several kernels; its FLOPs count once.
            told.add(arguments["External id"])
            flops = product_flops(operator)
        name = _name(operator) if operator is not None else _short(kernel["name"])
        yield name, category, (kernel["ts"], kernel["ts"] + kernel["dur"]), flops, True


def product_flops(event: dict[str, Any]) -> float:
    """FLOPs of a matrix product by its recorded shapes; 0 for anything else."""
    dims = [dim for dim in event.get("args", {}).get("Input Dims", []) if isinstance(dim, list)]
    name = event["name"]
    try:
        if name == "aten::mm":
            (m, k), (_, n) = dims[:2]
            return 2.0 * m * k * n
        if name == "aten::addmm":
            (m, k), (_, n) = dims[1:3]
            return 2.0 * m * k * n
        if name in ("aten::bmm", "aten::baddbmm"):
            (b, m, k), (_, _, n) = dims[-2:] if name == "aten::bmm" else dims[1:3]
            return 2.0 * b * m * k * n
        # What torch's plain attention multiplies, it has torch multiply: those products count for themselves.
        if name.startswith("aten::_scaled_dot_product") and not name.endswith("_math"):
            backward = "backward" in name
            *batch, queries, size = dims[1 if backward else 0]
            keys = dims[2 if backward else 1][-2]
            products = 5 if backward else 2
            return 2.0 * products * _product(batch) * queries * keys * size
    except (ValueError, IndexError):
        # Shapes that are none of a product's: an overload with other inputs.
        return 0.0
    return 0.0


def _parts(events: list[dict[str, Any]]) -> dict[str, list[Interval]]:
    """Own stretches of the step's parts: a part inside another is taken out of it."""
    marked = [
        event
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(PART_PREFIX)
    ]
    found: dict[str, list[Interval]] = collections.defaultdict(list)
    for event in sorted(marked, key=lambda event: event["ts"]):
        found[event["name"].removeprefix(PART_PREFIX)].append((event["ts"], event["ts"] + event["dur"]))
    return {
        name: _without(_union(intervals), _union(_inner(name, intervals, found)))
        for name, intervals in found.items()
    }


def _inner(name: str, intervals: list[Interval], found: dict[str, list[Interval]]) -> Iterator[Interval]:
    outer = _union(intervals)
    for other, theirs in found.items():
        if other != name:
            yield from (one for one in theirs if _is_in(one[0], outer) and _is_in(one[1], outer))


def _is_step(event: dict[str, Any]) -> bool:
    return event["name"].startswith("ProfilerStep#")


def _name(event: dict[str, Any]) -> str:
    """With the shapes, of matrix products."""
    name = event["name"].removeprefix("autograd::engine::evaluate_function: ")
    if category_of(name) == "matmul":
        dims = [
            dim
            for dim in event.get("args", {}).get("Input Dims", [])
            if isinstance(dim, list) and len(dim) > 1
        ]
        if dims:
            name += " " + " x ".join("[" + ", ".join(map(str, dim)) + "]" for dim in dims)
    return name


def _short(name: str) -> str:
    """A kernel's name without its template arguments' tail."""
    return name if len(name) <= 90 else name[:87] + "..."


# --- intervals ----------------------------------------------------------------------------------------------------


def _shares(stretches: dict[str, list[Interval]], window: Interval) -> tuple[dict[str, float], float]:
    """Seconds by category, each moment counted once, and the communication that others hide."""
    covered: list[Interval] = []
    shares, hidden = {}, 0.0
    for name in CATEGORIES[:-1]:
        own = _union(stretches[name])
        free = _without(own, covered)
        shares[name] = _length(free) / 1e6
        if name == "communication":
            hidden = (_length(own) - _length(free)) / 1e6
        covered = _union([*covered, *free])
    shares["idle"] = (window[1] - window[0] - _length(covered)) / 1e6
    return shares, hidden


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _without(intervals: list[Interval], taken: list[Interval]) -> list[Interval]:
    """What of `intervals` is not in `taken`; both sorted and disjoint."""
    left: list[Interval] = []
    at = 0
    for begin, end in intervals:
        while at < len(taken) and taken[at][1] <= begin:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] < end:
            if taken[look][0] > begin:
                left.append((begin, taken[look][0]))
            begin = max(begin, taken[look][1])
            look += 1
        if begin < end:
            left.append((begin, end))
    return left


def _length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _overlap(interval: Interval, window: Interval) -> float:
    return max(0.0, min(interval[1], window[1]) - max(interval[0], window[0]))


def _is_in(moment: float, intervals: list[Interval]) -> bool:
    """Whether it lies in one of sorted, disjoint intervals."""
    at = bisect.bisect_right(intervals, (moment, float("inf"))) - 1
    return at >= 0 and intervals[at][0] <= moment <= intervals[at][1]


def _product(numbers: list[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


# --- memory -------------------------------------------------------------------------------------------------------


def _memory(events: list[dict[str, Any]], window: Interval, device: str) -> list[tuple[float, int]]:
    kind = 1 if device == "cuda" else 0
    points = [
        ((event["ts"] - window[0]) / 1e6, int(event["args"]["Total Allocated"]))
        for event in events
        if event.get("name") == "[memory]"
        and event["args"].get("Device Type") == kind
        and window[0] <= event["ts"] <= window[1]
    ]
    return sorted(points)


def _thinned(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most TIMELINE_POINTS of them, the highest of each run, so that no peak is lost."""
    size = -(-len(points) // TIMELINE_POINTS) or 1
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]


def _table(title: str, seconds: dict[str, float], whole: float) -> list[str]:
    lines = [title]
    for name, own in seconds.items():
        share = own / whole if whole else 0.0
        lines.append(f"  {name:<18} {own:>10.4f} s  {share:>6.1%}  {'#' * round(40 * share)}".rstrip())
    return lines
