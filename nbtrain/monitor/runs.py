"""Which runs there are: the output root, read at the moment of asking."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nbtrain.base.errors import RecordError
from nbtrain.base.jobstate import read_state
from nbtrain.base.records import Heartbeat, JobRecord
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import output_root

NO_JOB = "NEW"
DAMAGED = "DAMAGED"


@dataclass(frozen=True)
class RunSummary:
    """One line of `nbtrain runs`."""

    name: str
    run_id: str | None
    parent: str | None
    state: str
    """The newest job's, as a reader must see it; NEW before the first submission, DAMAGED if a record of the
    run cannot be read (`cause` names it).
    """
    cause: str | None
    job_id: str | None
    num_jobs: int
    created_at: float
    """Of the newest job, or of the run if it has none."""
    ended_at: float | None
    world_size: int | None
    restarts: int
    step: int | None
    total_steps: int | None
    loss: float | None
    validation_loss: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RunList(list[RunSummary]):
    """Runs that print, and show in a cell, as the table of `nbtrain runs`."""

    def __repr__(self) -> str:
        return runs_table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's plain text."""
        printer.text(repr(self))


def list_runs(root: Path | None = None) -> RunList:
    """Every run under the output root (or `root`), the one with the newest job first."""
    root = output_root() if root is None else root
    if not root.is_dir():
        return RunList()
    runs = [RunDir(folder) for folder in root.iterdir() if (folder / "run.json").is_file()]
    now = time.time()
    found = (_summary_or_damage(run, now) for run in runs)
    return RunList(sorted(found, key=lambda entry: (-entry.created_at, entry.name)))


def _summary_or_damage(run: RunDir, now: float) -> RunSummary:
    try:
        return summary_of(run, now)
    except RecordError as error:
        # One damaged file must not hide every other run.
        unknown: dict[str, Any] = dict.fromkeys(field.name for field in fields(RunSummary))
        return RunSummary(
            **unknown
            | {"name": run.name, "state": DAMAGED, "cause": str(error)}
            | {"num_jobs": len(run.job_ids()), "created_at": run.run_json.stat().st_mtime, "restarts": 0}
        )


def summary_of(run: RunDir, now: float) -> RunSummary:
    """The line of one run."""
    identity = run.record() or {}
    job = run.newest_job()
    record = JobRecord.read(job.job_json) if job else None
    beat = Heartbeat.read(job.heartbeat(0)) if job else None
    beat = record.placed(beat) if record and beat else beat
    state, cause = read_state(job, now) if job else (NO_JOB, None)
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
        ended_at=record.ended_at if record else None,
        world_size=record.world_size if record else None,
        restarts=record.restarts if record else 0,
        step=beat.step if beat else record.first_step if record else None,
        total_steps=progress.total_steps if progress else None,
        loss=progress.loss if progress else None,
        validation_loss=progress.validation_loss if progress else None,
    )


def runs_table(entries: Sequence[RunSummary]) -> str:
    """The lines of `nbtrain runs`, as text in columns."""
    if not entries:
        return f"No runs under {output_root()}. `nbtrain submit gpt-tiny` starts one."
    rows = [("NAME", "STATE", "STEP", "LOSS", "VALIDATION", "JOBS", "SUBMITTED (UTC)", "CAUSE")]
    for entry in entries:
        of = f"/{entry.total_steps:,}" if entry.total_steps else ""
        rows.append(
            (
                entry.name,
                entry.state,
                f"{entry.step:,}{of}" if entry.step is not None else "-",
                _figure(entry.loss),
                _figure(entry.validation_loss),
                str(entry.num_jobs),
                time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.created_at)),
                _shortened(entry.cause or ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def _figure(value: float | None) -> str:
    return f"{value:.4f}" if value is not None else "-"


def _shortened(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
