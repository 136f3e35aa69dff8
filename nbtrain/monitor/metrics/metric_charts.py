"""Groups a run's scalars into charts and sets their appearance, live and in the static picture.

metric_charts(tags)  ->  [{"title", "names"}]      drawn(chart, answer)  ->  a chart for static_charts.py
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nbtrain.base.printing.theme import line_look
from nbtrain.monitor.metrics.chart_data import SMOOTHING, ChartKind, chart

TOGETHER: dict[str, tuple[str, ...]] = {
    "Loss": ("loss", "validation_loss", "test_loss"),
    "Perplexity": ("validation_perplexity", "test_perplexity"),
    "Reward margin": ("reward_margin", "validation_reward_margin"),
    "Reward accuracy": ("reward_accuracy", "validation_reward_accuracy"),
    "Rewards": ("reward_chosen", "reward_rejected"),
    "Learning rate": ("learning_rate",),
    "Gradient norm": ("grad_norm",),
    "Throughput": ("tokens_per_second",),
    "Samples per second": ("samples_per_second",),
    "Utilization": ("mfu", "hfu"),
    # This is not a fraction of a peak: it exceeds 100 % if the device was slower when its rate was measured.
    "Model FLOPs as a share of the measured matrix rate": ("matmul_fraction",),
    "Time of a step": ("iteration_time",),
    "Parts of a step": (
        *("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "pipeline_seconds"),
        "communication_seconds",
    ),
    "Compute time of the ranks": ("compute_max_seconds", "compute_median_seconds", "compute_min_seconds"),
    "Validation and checkpoints": (
        *("evaluation_seconds", "tasks_seconds", "checkpoint_seconds", "checkpoint_write_seconds"),
    ),
    "Memory": ("host_memory_bytes", "device_memory_bytes"),
    "Share of memory": ("host_memory_fraction", "device_memory_fraction"),
    "Bad steps": ("skipped_steps", "overflow_steps", "loss_spikes", "rollbacks", "steps_without_loss"),
}
"""{title of a chart: names of its scalars}; every other scalar gets its own chart."""
# {prefix of a scalar's name: its label, to which "of" and the dataset's name are appended}
OF_DATASETS = {
    "loss/": "loss",
    "validation_loss/": "validation loss",
    "validation_perplexity/": "validation perplexity",
}
OF_TASKS = "task/"
OF_CODE = "code/"
# Scalars that are not drawn, because they only convert the axis of other curves.
NO_CURVES = ("steps_vs_tokens", "steps_vs_samples")
# Scalars that are smoothed because they are noisy. A smoothed schedule or count would be misleading.
SMOOTHED = re.compile(
    "^(?!task/|loss_s(cale|pikes)$|steps_without_loss$).*(loss|reward|grad_norm|per_second|tflops|seconds|iteration_time|perplexity)"
)
DOTTED = re.compile("validation|test_|evaluation|checkpoint|^task")
SHARES = re.compile("^(mfu|hfu)$|_fraction$|_accuracy$|^task/.* acc(_norm)?$")
NOT_FROM_ZERO = re.compile(
    "^(?!task/.* acc|loss_s(cale|pikes)$|steps_without_loss$).*(loss|perplexity|norm|reward)"
)
COUNTED = ("steps", "ranks", "sequences", "tokens")


def form_of(name: str, unit: str) -> str:
    """Return the form of a scalar's labels, a name in chart_data.FORMS and lab/ui/charts/numbers.js."""
    if SHARES.search(name):
        return "share"
    if name == "learning_rate":
        return "scientific"
    if unit in COUNTED:
        return "whole"
    return "bytes" if unit == "bytes" else "number"


def how_drawn(name: str, unit: str) -> dict[str, Any]:
    """Return the appearance of a scalar in its own chart."""
    form = form_of(name, unit)
    return {
        "form": form,
        "y_name": "" if form in ("share", "bytes") else unit,
        "from_zero": not NOT_FROM_ZERO.search(name),
        "smooth": bool(SMOOTHED.search(name)),
        "dots": bool(DOTTED.search(name)),
    }


def metric_charts(tags: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return {"title", "names"} for each chart; `tags` comes from metrics_range.metrics()."""
    there = {row["tag"]: row for row in tags if row["tag"] not in NO_CURVES}
    found = []
    for title, names in TOGETHER.items():
        if having := [name for name in names if there.pop(name, None)]:
            found.append({"title": title, "names": having})
    blends = []
    for before, words in OF_DATASETS.items():
        if having := [name for name in there if name.startswith(before)]:
            found.append({"title": f"{words.capitalize()} of each dataset", "names": having})
            blends += having
    tasks = [name for name in there if name.startswith(OF_TASKS)]
    for title, is_of_perplexity in (("Accuracy on tasks", False), ("Perplexity on tasks", True)):
        if having := [name for name in tasks if name.endswith("perplexity") == is_of_perplexity]:
            found.append({"title": title, "names": having})
    alone = [row for name, row in there.items() if name not in blends + tasks]
    titles = ((row, row["title"]) for row in alone)
    return found + [{"title": title[0].upper() + title[1:], "names": [row["tag"]]} for row, title in titles]


def _drawable(values: Sequence[float | None]) -> list[float | None]:
    """Replace NaN and Inf by None, because a browser stops drawing a line at the first NaN."""
    return [value if value is not None and math.isfinite(value) else None for value in values]


def drawn(one: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (chart, curves) of a chart from metric_charts(), for static_charts.py.

    `answer` comes from metrics_range.metrics().
    """
    rows = {row["tag"]: row for row in answer["tags"]}
    names = [name for name in one["names"] if answer["series"].get(name, {}).get("value")]
    lines, curves = [], {}
    for number, name in enumerate(names):
        row, part = rows[name], answer["series"][name]
        lines.append({"name": name, "label": row["title"], **line_look(number), "dots": row["dots"]})
        curves[name] = {"steps": part["step"], "values": _drawable(part["value"])}
        curves[name] |= {key: _drawable(part[key]) for key in ("low", "high") if key in part}
        curves[name] |= {"bad": part["bad"]} if "bad" in part else {}
    first = rows[one["names"][0]]
    weight = SMOOTHING if first["smooth"] else 0.0
    kind = ChartKind(lines, first["y_name"], first["form"], first["from_zero"], weight)
    return chart(curves, kind) | {"title": one["title"]}, curves
