"""Summarizes a profile on one page: sentences, time shares, most expensive operators, memory over time.

    chrome trace of torch.profiler -> ProfileSummary -> rank<r>.step<n>.txt, .json and .svg (picture.py)

Every moment of the profiled steps belongs to one category, so that the shares add up to the whole:

    on a GPU   the kernel that runs; if several run at once, the first in CATEGORIES, so that communication
               is only the part that no computation hides; idle if nothing runs
    on a CPU   the innermost operator of the training's thread; between operators communication if gloo's
               threads are in a collective, otherwise idle

Work inside attention or the optimizer's step counts as attention or optimizer. An operator's time excludes
the operators that it calls.
"""

import gzip
import itertools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.printing.report import Column, Record, Report, Result, Sentence, Table
from nbtrain.base.text import amounts
from nbtrain.train.profile.picture import picture
from nbtrain.train.profile.sentences import profile_sentences
from nbtrain.train.profile.trace import (
    CATEGORIES,
    Interval,
    is_step,
    length,
    on_device,
    on_host,
    overlap,
    parts_of,
    union,
    without,
)

TOP_OPERATORS = 25
TIMELINE_POINTS = 400
TIMELINE_BARS = 500


@dataclass
class Operator:
    """All calls of one operator. Matrix products with different shapes count as different operators."""

    name: str
    category: str
    calls: int
    seconds: float
    flops: float = 0.0
    """FLOPs of all calls; 0 if the operator is not a matrix product or if shapes were not recorded."""


@dataclass(repr=False)
class ProfileSummary(Result, Record):
    """Summary of one profiler cycle on one rank."""

    title: str
    device: str
    """cuda or cpu."""
    steps: int
    seconds: float
    """Seconds of all profiled steps."""
    categories: dict[str, float]
    """Seconds by name in CATEGORIES; they add up to `seconds`."""
    hidden_communication_seconds: float
    """Seconds of communication that computation hides, on a GPU."""
    parts: dict[str, float]
    """Seconds by part of the step, on the host's clock; time outside all parts is omitted."""
    operators: list[Operator]
    """The most expensive operators."""
    flops: float
    """FLOPs of all matrix products, computed from their shapes."""
    memory: list[tuple[float, int]]
    """Points (seconds since the start of the first step, bytes allocated). On a CPU, only memory allocated
    since the profile began is counted.
    """
    peak_memory_bytes: int
    peak_memory_seconds: float
    timeline: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Intervals in which each part ran, on the host's clock: seconds from the first step's start."""
    step_ends: list[float] = field(default_factory=list)
    """End of each step, in seconds from the first step's start."""

    derived = ("words",)

    @property
    def words(self) -> list[str]:
        """Sentences about the profile."""
        return profile_sentences(asdict(self))

    def as_report(self) -> Report:
        """Return the sentences, where the time goes, the most expensive operators and the peak of memory."""
        hidden, memory, products = self.hidden_communication_seconds, "", ""
        if self.flops:
            rate = self.flops / self.seconds / 1e12
            products = f"matrix products: {self.flops / 1e12:.4g} TFLOP, {rate:.4g} TFLOP/s over the steps"
        if self.memory:
            moment = f"{self.peak_memory_seconds * 1e3:.4g} ms after the first step's start"
            since = (
                "" if self.device == "cuda" else ", counting only memory allocated since the profile began"
            )
            memory = f"memory: peak {amounts.size(self.peak_memory_bytes)}, {moment}{since}"
        return Report(
            f"{self.title} | {self.device} | {amounts.counted(self.steps, 'step')}, {self.seconds:.4g} s, "
            f"{self.seconds / self.steps * 1e3:.4g} ms a step",
            [
                *map(Sentence, self.words),
                _shares_table("where the time goes", self.categories, self.seconds),
                Sentence(f"and {hidden:.4g} s of communication hidden by computation" if hidden else ""),
                _shares_table("parts of the step, by the host's clock", self.parts, self.seconds),
                Sentence(products),
                self._operators_table(),
                Sentence(memory),
            ],
        )

    def _operators_table(self) -> Table:
        columns: list[str | Column] = [
            Column("own ms", "{:.3f}".format),
            Column("share", "{:.1%}".format),
            "calls",
            Column("TFLOP/s", "{:.4g}".format),
            *("category", "operator"),
        ]
        rows = [
            (
                operator.seconds * 1e3,
                operator.seconds / self.seconds,
                operator.calls,
                operator.flops / operator.seconds / 1e12 if operator.flops else None,
                operator.category,
                operator.name,
            )
            for operator in self.operators
        ]
        return Table(columns, rows)


def _shares_table(title: str, seconds: dict[str, float], whole: float) -> Table:
    """Return a table of parts with their seconds, and their shares as numbers and as bars."""
    shares = {name: own / whole if whole else 0.0 for name, own in seconds.items()}
    rows = [(name, seconds[name], share, "#" * round(40 * share)) for name, share in shares.items()]
    return Table(["", Column("", "{:.4f} s".format), Column("", "{:.1%}".format), ""], rows, title)


def write_summary(trace_path: Path, title: str) -> Path:
    """Summarize a chrome trace in <stem>.txt, .json and .svg next to it, and return the path of the .txt."""
    with gzip.open(trace_path) as stream:
        summary = summarize(json.load(stream), title)
    stem = trace_path.name.removesuffix(".trace.json.gz")
    files.write_json(trace_path.with_name(f"{stem}.json"), summary.to_dict())
    files.write_text(trace_path.with_name(f"{stem}.svg"), picture(asdict(summary)))
    target = trace_path.with_name(f"{stem}.txt")
    files.write_text(target, f"{summary}\n")
    return target


def summarize(trace: dict[str, Any], title: str = "profile") -> ProfileSummary:
    """Summarize a chrome trace. Raises ValueError if it has no complete step."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    steps = [event for event in events if is_step(event) and event.get("cat") == "user_annotation"]
    if not steps:
        raise ValueError(
            "this profile has no complete step: the run did not reach the profile's active steps"
        )
    window = min(step["ts"] for step in steps), max(step["ts"] + step["dur"] for step in steps)
    parts = parts_of(events)
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    of_operators = on_device(events, kernels, parts) if kernels else on_host(events, steps[0]["tid"], parts)
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
            name: sum(overlap(interval, window) for interval in intervals) / 1e6
            for name, intervals in parts.items()
        },
        operators=costliest[:TOP_OPERATORS],
        flops=sum(operator.flops for operator in operators.values()),
        memory=_thinned(memory),
        peak_memory_bytes=peak[1],
        peak_memory_seconds=peak[0],
        timeline=_timeline(parts, window),
        step_ends=sorted((step["ts"] + step["dur"] - window[0]) / 1e6 for step in steps),
    )


def _timeline(parts: dict[str, list[Interval]], window: Interval) -> dict[str, list[tuple[float, float]]]:
    """Return the intervals of each part. If a part has more than TIMELINE_BARS intervals, those with the
    shortest gaps between them are merged.
    """
    found = {}
    for name, intervals in parts.items():
        clipped = [(max(begin, window[0]), min(end, window[1])) for begin, end in intervals]
        bars = [(begin, end) for begin, end in clipped if end > begin]
        if len(bars) > TIMELINE_BARS:
            gaps = sorted(second[0] - first[1] for first, second in itertools.pairwise(bars))
            least = gaps[len(bars) - TIMELINE_BARS - 1]
            bars = union((begin, end + least) for begin, end in bars)
            bars = [(begin, end - least) for begin, end in bars]
        if bars:
            found[name] = [((begin - window[0]) / 1e6, (end - window[0]) / 1e6) for begin, end in bars]
    return found


def _shares(stretches: dict[str, list[Interval]], window: Interval) -> tuple[dict[str, float], float]:
    """Return (seconds by category, each moment counted once; seconds of hidden communication)."""
    covered: list[Interval] = []
    shares, hidden = {}, 0.0
    for name in list(CATEGORIES)[:-1]:
        own = union(stretches[name])
        free = without(own, covered)
        shares[name] = length(free) / 1e6
        if name == "communication":
            hidden = (length(own) - length(free)) / 1e6
        covered = union([*covered, *free])
    shares["idle"] = (window[1] - window[0] - length(covered)) / 1e6
    return shares, hidden


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
    """Return at most TIMELINE_POINTS points: the highest point of each chunk, so that no peak is lost."""
    size = -(-len(points) // TIMELINE_POINTS) or 1
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]
