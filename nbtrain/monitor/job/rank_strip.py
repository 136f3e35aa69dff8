"""A job's ranks as a strip of colored cells: state, and computing time and memory compared with the median.

rank_strip(page)  ->  {"measures", "cells"}  ->  lab/ui/run_tabs/strip.js
"""

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from nbtrain.base.run_directory.rank_phases import (
    ERROR,
    PENDING_RANK,
    RUNNING_RANK,
    STARTING_RANK,
    SUCCEEDED_RANK,
    RankPhase,
)
from nbtrain.monitor.job.job_description import JobDescription, RankRow, Replica, metric_text

# Maximum number of cells. Each cell is a click target, so a longer strip would take more space than the
# table.
MOST_CELLS = 1024
# A value that is at least this fraction above or below the median gets the strongest color.
FULL_FRACTION = 0.5
TONES = {
    RUNNING_RANK: "live",
    SUCCEEDED_RANK: "good",
    ERROR: "bad",
    PENDING_RANK: "wait",
    STARTING_RANK: "wait",
}
"""{phase of a rank: tone of its cell}. The tone of all other phases is "calm"."""


def rank_strip(page: JobDescription) -> dict[str, Any]:
    """Return the strip of a job's ranks.

    measures   [[key, title, summary], ...]: what the cells can be colored by; the first is the state
    cells      [{"rank", "group", "tone", "words", "message", "texts", "levels"}, ...]: "group" is the
               replica, "texts" is {measure: text}, and "levels" is {measure: -1 (below the median) to
               1 (above)}
    left_out   number of ranks without a cell
    """
    rows = [(replica, row) for replica in page.replicas for row in replica.ranks]
    measures, levels = [["state", "state", _states(rows)]], {}
    for key, title, value, text in (
        ("seconds", "computing time", _seconds, seconds_text),
        ("memory", "memory", _memory, lambda value: metric_text("memory_bytes", value)),
    ):
        values = {row.rank: known for replica, row in rows if (known := value(replica, row)) is not None}
        if values:
            measures.append([key, title, _summary(values, text)])
            levels[key] = (values, statistics.median(values.values()), text)
    cells = [_cell(replica, row, levels) for replica, row in rows[:MOST_CELLS]]
    return {"measures": measures, "cells": cells, "left_out": max(0, len(rows) - MOST_CELLS)}


def seconds_text(value: float) -> str:
    """Format a step time with three decimals, or with three significant digits if it is below 0.01 s."""
    return f"{value:.3f} s" if value >= 0.01 else f"{value:.3g} s"


def _cell(replica: Replica, row: RankRow, levels: dict[str, Any]) -> dict[str, Any]:
    phase = RankPhase(row.phase, row.activity)
    texts, shares = {"state": phase.short}, {}
    words = [f"rank {row.rank}: {phase.words}"]
    if row.step is not None:
        words.append(f"step {row.step:,}")
    for key, (values, median, text) in levels.items():
        if (value := values.get(row.rank)) is None:
            continue
        texts[key] = text(value)
        words.append(f"{texts[key]} of compute per step" if key == "seconds" else f"{texts[key]} of memory")
        share = (value / median - 1) / FULL_FRACTION if median else 0.0
        shares[key] = round(max(-1.0, min(1.0, share)), 3)
    failed = next((end.message for end in reversed(row.earlier) if end.failed), "")
    return {
        "rank": row.rank,
        "group": " \N{MIDDLE DOT} ".join(filter(None, (replica.name, replica.host))),
        "tone": TONES.get(row.phase, "calm"),
        "words": ", ".join(words),
        "message": row.message or (f"In an earlier attempt: {failed}" if failed else ""),
        "texts": texts,
        "levels": shares,
    }


def _states(rows: list[tuple[Replica, RankRow]]) -> str:
    counts = Counter(row.phase for _, row in rows)
    return ", ".join(f"{count} {phase}" for phase, count in counts.most_common())


def _summary(values: dict[int, float], text: Callable[[float], str]) -> str:
    """Summarize values, such as "median 0.12 s, lowest 0.11 s (rank 3), highest 0.31 s (rank 37)"."""
    if len(values) == 1:
        return text(next(iter(values.values())))
    low, high = min(values, key=lambda rank: values[rank]), max(values, key=lambda rank: values[rank])
    ends = f"lowest {text(values[low])} (rank {low}), highest {text(values[high])} (rank {high})"
    return f"median {text(statistics.median(values.values()))}, {ends}"


def _seconds(replica: Replica, row: RankRow) -> float | None:
    return row.compute_seconds


def _memory(replica: Replica, row: RankRow) -> float | None:
    use = row.use.get("memory_bytes")
    return use.newest if use else None
