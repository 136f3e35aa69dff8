"""Which runs there are: the output root, read at the moment of asking."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nbtrain.base import last_words
from nbtrain.base.errors import RecordError
from nbtrain.base.jobstate import ACTIVE, read_state
from nbtrain.base.records import Heartbeat, JobRecord
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.base.workspace import output_root

NO_JOB = "NEW"
DAMAGED = "DAMAGED"
CAUSE_LENGTH = 60


@dataclass(frozen=True)
class RunSummary:
    """One line of `nbtrain runs`."""

    name: str
    state: str
    """The newest job's; NEW before the first, DAMAGED if `cause` names a record that cannot be read."""
    cause: str | None
    num_jobs: int
    created_at: float
    """Of the newest job, or of the run if it has none."""
    run_id: str | None = None
    parent: str | None = None
    job_id: str | None = None
    ended_at: float | None = None
    world_size: int | None = None
    restarts: int = 0
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    validation_loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RunList(list[RunSummary]):
    """Runs that print, and show in a cell, as the table of `nbtrain runs`."""

    def __repr__(self) -> str:
        return runs_table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def list_runs(root: Path | None = None) -> RunList:
    """Every run under the output root (or `root`), the one with the newest job first."""
    root = output_root() if root is None else root
    if not root.is_dir():
        return RunList()
    runs = [RunDir(folder) for folder in root.iterdir() if (folder / "run.json").is_file()]
    now = time.time()
    found = RunList()
    for run in runs:
        try:
            found.append(summary_of(run, now))
        except RecordError as error:
            # One damaged file must not hide every other run.
            damaged_at = run.run_json.stat().st_mtime
            found.append(RunSummary(run.name, DAMAGED, str(error), len(run.job_ids()), damaged_at))
    found.sort(key=lambda entry: (-entry.created_at, entry.name))
    return found


def summary_of(run: RunDir, now: float) -> RunSummary:
    """The line of one run."""
    identity = run.record() or {}
    job = run.newest_job()
    state, cause = read_state(job, now) if job else (NO_JOB, None)
    record = record_with_end(job, state) if job else None
    beat = Heartbeat.read(job.heartbeat(0)) if job else None
    beat = record.placed(beat) if record and beat else beat
    progress = beat.progress if beat else None
    return RunSummary(
        name=run.name,
        run_id=identity.get("run_id"),
        parent=identity.get("parent"),
        state=state,
        cause=cause,
        job_id=job.job_id if job else None,
        num_jobs=len(run.job_ids()),
        created_at=record.created_at if record else identity.get("created_at", 0.0),
        ended_at=getattr(record, "ended_at", None),
        world_size=getattr(record, "world_size", None),
        restarts=record.restarts if record else 0,
        step=beat.step if beat else record.first_step if record else None,
        **{key: getattr(progress, key, None) for key in ("total_steps", "loss", "validation_loss")},
    )


def record_with_end(job: JobDir, state: str) -> JobRecord | None:
    """The job's record, with `ended_at` unless `state`, read before, is an active one; None without job.json.

    If job.json does not hold the end, it is that of the job's last words (base/last_words.py). A job without
    any, which is LOST, ended at its newest heartbeat, or at job.json's time stamp if it had none.
    """
    record = JobRecord.read(job.job_json)
    if record is None or state in ACTIVE or record.ended_at is not None:
        return record
    if (words := last_words.kept(record)) and words.ended_at is not None:
        return words
    beats = [beat for path in job.path.glob("heartbeat/*.json") if (beat := Heartbeat.read(path))]
    if not beats:
        return replace(record, ended_at=job.job_json.stat().st_mtime)
    last = max(beats, key=lambda beat: beat.time)
    stamps = {"ended_at": last.stamps["time"]} if "time" in last.stamps else {}
    return replace(record, ended_at=last.time, stamps={**record.stamps, **stamps})


def runs_table(entries: Sequence[RunSummary]) -> str:
    """The lines of `nbtrain runs`, as text in columns."""
    if not entries:
        return f"No runs under {output_root()}. `nbtrain submit gpt-tiny` starts one."
    titles = ("NAME", "STATE", "STEP", "LOSS", "VALIDATION", "JOBS", "SUBMITTED (UTC)", "CAUSE")
    rows: list[tuple[str, ...]] = [titles]
    for entry in entries:
        of = f"/{entry.total_steps:,}" if entry.total_steps else ""
        step = f"{entry.step:,}{of}" if entry.step is not None else "-"
        losses = ("-" if loss is None else f"{loss:.4f}" for loss in (entry.loss, entry.validation_loss))
        submitted = time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.created_at))
        cause = entry.cause or ""
        cause = cause if len(cause) <= CAUSE_LENGTH else f"{cause[: CAUSE_LENGTH - 3]}..."
        rows.append((entry.name, entry.state, step, *losses, str(entry.num_jobs), submitted, cause))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )
