"""The list of runs, read from the output directory on each call, and its table as text."""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nbtrain.base.printing.report import Report, Result, Sentence, Table
from nbtrain.base.run_directory.jobstate import LOST, QUEUED
from nbtrain.base.run_directory.observed_state import ENGINES
from nbtrain.base.run_directory.rundir import RunDir, may_be_run
from nbtrain.base.text.amounts import utc
from nbtrain.base.workspace import output_root
from nbtrain.monitor.runs.run_filter import EVERY_RUN, RunFilter
from nbtrain.monitor.status.resume_start import resume_words
from nbtrain.monitor.status.run_status import RunStatus
from nbtrain.monitor.status.status_records import listed_status

# Maximum length of a cause: one or two sentences. The job page shows the whole cause.
CAUSE_LENGTH = 140


class RunList(Result, list[RunStatus]):
    """A list of runs that displays as the table of `nbtrain runs`."""

    def as_report(self) -> Report:
        """Return a report with the table of runs."""
        if not self:
            return Report(
                "", [Sentence(f"No runs under {output_root()}. Run `nbtrain submit gpt-tiny` to start one.")]
            )
        heads = ["NAME", "STATE", "STEP", "LOSS", "VALIDATION", "JOBS", "SUBMITTED (UTC)", "CAUSE"]
        labelled = any(entry.labels for entry in self)
        if labelled:
            heads.insert(-1, "LABELS")
        return Report("", [Table(heads, [_row(entry, labelled) for entry in self])])


def _row(entry: RunStatus, labelled: bool) -> list[str]:
    """Return a run's cells in the table."""
    losses = ("-" if loss is None else f"{loss:.4f}" for loss in (entry.loss, entry.validation_loss))
    cause = shorter(entry.cause or "")
    if entry.state == LOST:
        cause += f"; {resume_words(RunDir.named(entry.name))}"
    elif entry.state == QUEUED and entry.asked == "pause" and entry.backend in ENGINES:
        # The list does not query the scheduler, which may have confirmed the pause since.
        cause = "; ".join(filter(None, (cause, f"`nbtrain status {entry.name}` shows whether it is paused")))
    return [
        entry.name,
        entry.state,
        "-" if entry.step is None else entry.steps_text(),
        *losses,
        str(entry.num_jobs),
        utc(entry.created_at, "%Y-%m-%d %H:%M"),
        *([",".join(f"{key}={value}" for key, value in entry.labels.items())] if labelled else []),
        cause,
    ]


def list_runs(root: Path | None = None, wanted: RunFilter = EVERY_RUN) -> RunList:
    """Return the runs in the output directory (or `root`) that `wanted` accepts, in its order."""
    return RunList(wanted.ordered(_found(output_root() if root is None else root, wanted)))


def _found(root: Path, wanted: RunFilter) -> Iterator[RunStatus]:
    if not root.is_dir():
        return
    now = time.time()
    names = (name for name in os.listdir(root) if may_be_run(name) and wanted.named(name))
    found = (listed_status(root, name, now) for name in names)
    yield from (run for run in found if run is not None and wanted.wants(run, now))


def runs_json(entries: Sequence[RunStatus]) -> str:
    """Return the runs as a JSON list with one run per line."""
    # json takes five times as long if it indents.
    return "[\n" + ",\n".join(json.dumps(entry.to_dict()) for entry in entries) + "\n]"


def shorter(cause: str, most: int = CAUSE_LENGTH) -> str:
    """Shorten a cause to the first sentences that fit into `most` characters, with "..." at the cut.

    If the first sentence is too long, it is cut after a word.
    """
    whole = " ".join(cause.split())
    if len(whole) <= most:
        return whole
    ends = [match.start() for match in re.finditer(r"; |\. (?=[A-Z`])", whole)]
    if fitting := [end for end in ends if end <= most - 3]:
        return f"{whole[: fitting[-1]]}..."
    first = whole[: most - 3]
    return f"{first.rpartition(' ')[0] or first}..."
