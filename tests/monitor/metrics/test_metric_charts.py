"""How scalars are grouped into charts, and how each chart is drawn."""

import math
from typing import Any

from nbtrain.monitor.metrics.chart_data import smoothed
from nbtrain.monitor.metrics.metric_charts import drawn, how_drawn, metric_charts


def tags_of(**units: str) -> list[dict[str, Any]]:
    return [
        {"tag": name, "title": name.replace("_", " "), "unit": unit, **how_drawn(name, unit)}
        for name, unit in units.items()
    ]


def test_curves_that_are_read_together_share_a_chart() -> None:
    """Related scalars share a chart, and every other scalar has its own. Scalars that serve as an axis have
    none.
    """
    tags = tags_of(steps_vs_tokens="tokens", validation_loss="nats", loss="nats", queue_length="", mfu="")
    assert metric_charts(tags) == [
        {"title": "Loss", "names": ["loss", "validation_loss"]},
        {"title": "Utilization", "names": ["mfu"]},
        {"title": "Queue length", "names": ["queue_length"]},
    ]


def test_a_scalar_is_drawn_by_its_kind() -> None:
    """Loss curves are smoothed, validation points are drawn as dots, and percentages, bytes and counts are
    formatted as such.
    """
    looks = {
        row["tag"]: row for row in tags_of(loss="nats", mfu="", host_memory_bytes="bytes", skipped="steps")
    }
    assert (looks["loss"]["smooth"], looks["loss"]["from_zero"], looks["loss"]["y_name"]) == (
        True,
        False,
        "nats",
    )
    assert [looks[name]["form"] for name in ("mfu", "host_memory_bytes", "skipped")] == [
        "share",
        "bytes",
        "whole",
    ]
    # Names that only contain "loss" or "norm".
    for name in ("loss_scale", "loss_spikes", "task/hellaswag acc_norm"):
        look = how_drawn(name, "")
        assert (look["smooth"], look["from_zero"]) == (False, True), name
    assert how_drawn("validation_loss", "nats")["dots"] and not how_drawn("loss", "nats")["dots"]


def test_a_chart_for_the_picture_has_its_ticks() -> None:
    """In the picture, a chart has ticks, memory is in binary units starting at 0, and empty curves are
    omitted.
    """
    tags = tags_of(host_memory_bytes="bytes", device_memory_bytes="bytes")
    part = {"step": [1, 2, 3], "value": [2.0**30, 3.0 * 2**30, 2.5 * 2**30]}
    (one,) = metric_charts(tags)
    chart, curves = drawn(one, {"tags": tags, "series": {"host_memory_bytes": part}})
    assert [line["name"] for line in chart["lines"]] == ["host_memory_bytes"] == [*curves]
    assert chart["y"][0] == 0.0 and ["1 GiB" in label for _, label in chart["y_ticks"]].count(True) == 1
    assert chart["title"] == "Memory"


def test_a_loss_that_is_no_number_is_a_gap_in_the_picture() -> None:
    """In the picture, a NaN is a gap; the curve and its smoothed line continue after it."""
    tags = tags_of(loss="nats")
    part = {"step": [1, 2, 3, 4, 5], "value": [4.0, math.nan, 3.0, math.inf, 2.0]}
    (one,) = metric_charts(tags)
    chart, curves = drawn(one, {"tags": tags, "series": {"loss": part}})
    assert curves["loss"] == {"steps": [1, 2, 3, 4, 5], "values": [4.0, None, 3.0, None, 2.0]}
    line = smoothed(curves["loss"]["values"], chart["smoothing"])
    assert [value is None for value in line] == [False, True, False, True, False]
    assert 2.0 < line[4] < 4.0 and chart["x"] == [1, 5]


def test_the_losses_of_datasets_have_a_chart_for_each_kind() -> None:
    names = ["loss/wiki", "validation_loss/code", "validation_loss/wiki", "validation_perplexity/wiki"]
    tags = [{"tag": name, "title": name, "unit": "", **how_drawn(name, "")} for name in names]
    assert metric_charts(tags) == [
        {"title": "Loss of each dataset", "names": names[:1]},
        {"title": "Validation loss of each dataset", "names": names[1:3]},
        {"title": "Validation perplexity of each dataset", "names": names[3:]},
    ]
    assert all(how_drawn(name, "")["dots"] for name in names[1:])
    assert not how_drawn("steps_without_loss", "steps")["smooth"]
