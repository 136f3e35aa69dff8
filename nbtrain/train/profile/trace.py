"""The events of a chrome trace, each assigned to a part of the step and a kind of work."""

import bisect
import collections
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

Interval = tuple[float, float]

CATEGORIES = {
    "matmul": "#1f77b4",
    "attention": "#17a2b8",
    "norm, elementwise": "#2ca02c",
    "optimizer": "#9467bd",
    "copies": "#bcbd22",
    "other": "#8c8c8c",
    "communication": "#d62728",
    "data": "#e8710a",
    "idle": "#e5e7eb",
}
"""Categories of work in order of precedence, with their colors in pictures. If work of several categories
runs at once, the first category counts.
"""

PART_PREFIX = "nbtrain: "
"""Prefix of the names under which parts of a step (throughput.py) appear in the trace."""

# The first pattern that occurs in the lower-case name of an operator or kernel decides its category.
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

# An operator inside an operator of these categories, at any depth, counts for the outer operator's category.
_LASTING = {"attention", "optimizer", "communication", "data"}


def category_of(name: str) -> str:
    """Return the category of an operator or a kernel by its name."""
    lower = name.lower()
    return next((category for category, pattern in _RULES if pattern.search(lower)), "other")


Stretch = tuple[str, str, Interval, float, bool]
"""An interval of work: (operator, category, interval, FLOPs, whether the interval begins a call)."""


def on_host(events: list[dict[str, Any]], thread: Any, parts: dict[str, list[Interval]]) -> Iterator[Stretch]:
    """Yield the innermost operators of the training thread, and the collectives on the other threads."""
    for event in events:
        if event["tid"] != thread and category_of(event["name"]) == "communication":
            yield _name(event), "communication", (event["ts"], event["ts"] + event["dur"]), 0.0, True
    own = [
        event
        for event in events
        if event["tid"] == thread and event.get("cat") in ("cpu_op", "user_annotation")
    ]
    own = [event for event in own if not is_step(event) and not event["name"].startswith(PART_PREFIX)]
    # Outer events before inner ones.
    own.sort(key=lambda event: (event["ts"], -event["dur"]))
    open_events: list[tuple[str, str, float]] = []
    reached = 0.0
    for event in [*own, {"ts": float("inf"), "dur": 0.0, "name": ""}]:
        while open_events and open_events[-1][2] <= event["ts"]:
            name, category, end = open_events.pop()
            if end > reached:
                yield name, category, (reached, end), 0.0, False
                reached = end
        if open_events and event["ts"] > reached:
            yield *open_events[-1][:2], (reached, event["ts"]), 0.0, False
        if event["name"]:
            outer = open_events[-1][1] if open_events else ""
            category = outer if outer in _LASTING else category_of(event["name"])
            if category != "communication" and is_in(event["ts"], parts.get("optimizer", [])):
                category = "optimizer"
            end = event["ts"] + event["dur"]
            if open_events:
                # Times are rounded: an inner event may seem to end after its outer one.
                end = min(end, open_events[-1][2])
            open_events.append((_name(event), category, end))
            # The first nanosecond of each call is yielded as a separate interval, which marks the call's
            # beginning and carries its FLOPs. An empty interval would be ignored by summarize().
            reached = min(end, event["ts"] + 1e-3)
            yield _name(event), category, (event["ts"], reached), product_flops(event), True


def on_device(
    events: list[dict[str, Any]], kernels: list[dict[str, Any]], parts: dict[str, list[Interval]]
) -> Iterator[Stretch]:
    """Yield kernels and copies, named by the operator that launched them."""
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
    counted: set[Any] = set()
    for kernel in kernels:
        arguments = kernel.get("args", {})
        operator = launchers.get(arguments.get("External id"))
        category = category_of(kernel["name"])
        if category in ("other", "norm, elementwise", "copies") and operator is not None:
            by_operator = category_of(operator["name"])
            category = by_operator if by_operator in _LASTING or category == "other" else category
        moment = launched_at.get(arguments.get("correlation"))
        if category != "communication" and moment is not None and is_in(moment, parts.get("optimizer", [])):
            category = "optimizer"
        flops = 0.0
        if operator is not None and arguments["External id"] not in counted:
            # An operator may launch several kernels, but its FLOPs count once.
            counted.add(arguments["External id"])
            flops = product_flops(operator)
        name = _name(operator) if operator is not None else shortened(kernel["name"], 90)
        yield name, category, (kernel["ts"], kernel["ts"] + kernel["dur"]), flops, True


def product_flops(event: dict[str, Any]) -> float:
    """Return the FLOPs of a matrix product, computed from its recorded shapes; 0 for other operators."""
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
        # torch's plain attention (_math) calls other operators for its products, which are counted there.
        if name.startswith("aten::_scaled_dot_product") and not name.endswith("_math"):
            backward = "backward" in name
            *batch, queries, size = dims[1 if backward else 0]
            keys = dims[2 if backward else 1][-2]
            products = 5 if backward else 2
            return 2.0 * products * math.prod(batch) * queries * keys * size
    except (ValueError, IndexError):
        # An overload with other inputs, whose shapes do not match.
        return 0.0
    return 0.0


def parts_of(events: list[dict[str, Any]]) -> dict[str, list[Interval]]:
    """Return the intervals of each part of the step, without the intervals of other parts nested in it."""
    marked = [
        event
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(PART_PREFIX)
    ]
    found: dict[str, list[Interval]] = collections.defaultdict(list)
    for event in sorted(marked, key=lambda event: event["ts"]):
        found[event["name"].removeprefix(PART_PREFIX)].append((event["ts"], event["ts"] + event["dur"]))
    return {
        name: without(union(intervals), union(_inner(name, intervals, found)))
        for name, intervals in found.items()
    }


def _inner(name: str, intervals: list[Interval], found: dict[str, list[Interval]]) -> Iterator[Interval]:
    outer = union(intervals)
    for other, theirs in found.items():
        if other != name:
            yield from (one for one in theirs if is_in(one[0], outer) and is_in(one[1], outer))


def is_step(event: dict[str, Any]) -> bool:
    return event["name"].startswith("ProfilerStep#")


def _name(event: dict[str, Any]) -> str:
    """Return an event's name; for matrix products, the shapes are appended."""
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


def shortened(name: str, letters: int) -> str:
    """Shorten a name to at most `letters` characters. The end is cut, because a kernel's template arguments
    matter little.
    """
    return name if len(name) <= letters else name[: letters - 3] + "..."


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge overlapping intervals: return sorted and disjoint intervals that cover the same time."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def without(intervals: list[Interval], taken: list[Interval]) -> list[Interval]:
    """Return the parts of `intervals` that do not overlap with `taken`; both are sorted and disjoint."""
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


def length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def overlap(interval: Interval, window: Interval) -> float:
    return max(0.0, min(interval[1], window[1]) - max(interval[0], window[0]))


def is_in(moment: float, intervals: list[Interval]) -> bool:
    """Return whether `moment` is in one of `intervals`, which are sorted and disjoint."""
    at = bisect.bisect_right(intervals, (moment, float("inf"))) - 1
    return at >= 0 and intervals[at][0] <= moment <= intervals[at][1]
