"""List of runs, read from the output directory for each request.

Most runs of a long list have ended, and three small files hold their line (_ended_summary). All others are
read as records (summary_of), which checks more and takes five times as long.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base import files, last_words
from nbtrain.base.amounts import utc
from nbtrain.base.errors import RecordError
from nbtrain.base.jobstate import ACTIVE, DAMAGED, FINAL, LOST, NO_JOB
from nbtrain.base.observed_state import ENGINES, read_job, seconds_left
from nbtrain.base.records import Heartbeat, JobRecord
from nbtrain.base.rundir import JOB_ID_PATTERN, JobDir, RunDir
from nbtrain.base.table import aligned
from nbtrain.base.workspace import display, output_root
from nbtrain.monitor.advice import asked_of
from nbtrain.monitor.notes import RunNotes, notes_of
from nbtrain.monitor.run_filter import EVERY_RUN, RunFilter
from nbtrain.monitor.run_summary import RunSummary

# One or two sentences of a cause; the job page has all of it.
CAUSE_LENGTH = 140
# A record has a few KB; a longer one is read by summary_of. For a buffer of 128 KiB or more, malloc would map
# new memory for each file.
RECORD_BYTES = 64 << 10
# A rank renews its heartbeat once a second; a rank on another host that did so recently still runs.
RANK_SILENCE_SECONDS = 10.0
NOTHING_SAID = RunNotes()


class RunList(list[RunSummary]):
    """A list of runs that is shown as the table of `nbtrain runs`."""

    def __repr__(self) -> str:
        return runs_table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def list_runs(root: Path | None = None, wanted: RunFilter = EVERY_RUN) -> RunList:
    """Return the runs in the output directory (or `root`) that `wanted` accepts, the newest job first."""
    return RunList(wanted.ordered(_found(output_root() if root is None else root, wanted)))


def _found(root: Path, wanted: RunFilter) -> Iterator[RunSummary]:
    if not root.is_dir():
        return
    now = time.time()
    # A name with a leading dot is not a run: a folder that is being deleted has one.
    names = (name for name in _entries(root) if not name.startswith(".") and wanted.named(name))
    found = (summary_in(root, name, now) for name in names)
    yield from (run for run in found if run is not None and wanted.wants(run, now))


def runs_json(entries: Sequence[RunSummary]) -> str:
    """Return a JSON list with one run per line."""
    # With indentation json writes at a fifth of this speed.
    return "[\n" + ",\n".join(json.dumps(entry.to_dict()) for entry in entries) + "\n]"


def summary_in(root: Path, name: str, now: float) -> RunSummary | None:
    """Return the line of one run; None if the entry of the output directory is not a run directory."""
    if ended := _ended_summary(f"{root}/{name}", name):
        return ended
    if not os.access(f"{root}/{name}/run.json", os.F_OK):
        return _closed(root, name)
    return summary_or_damage(RunDir(root / name), now)


def summary_or_damage(run: RunDir, now: float) -> RunSummary:
    """Return the line of one run, marked DAMAGED if a record cannot be read, so that the other runs are still
    listed.
    """
    try:
        return summary_of(run, now)
    except (RecordError, PermissionError) as error:
        cause = f"{files.not_allowed(error)}." if isinstance(error, PermissionError) else str(error)
        with contextlib.suppress(PermissionError, FileNotFoundError):
            return RunSummary(run.name, DAMAGED, cause, len(run.job_ids()), run.run_json.stat().st_mtime)
        return RunSummary(run.name, DAMAGED, cause, 0, run.path.stat().st_mtime)


def _closed(root: Path, name: str) -> RunSummary | None:
    """Return the line of a folder that this user may not read; None if it is not a run directory."""
    try:
        (root / name / "run.json").stat()
    except PermissionError as error:
        return RunSummary(name, DAMAGED, f"{files.not_allowed(error)}.", 0, (root / name).stat().st_mtime)
    except OSError:
        pass
    return None


def _ended_summary(folder: str, name: str) -> RunSummary | None:
    """Return the same line as summary_of() for a run whose newest job has recorded its end; None for other
    runs.
    """
    try:
        identity = _read(f"{folder}/run.json")
        job_ids = [entry for entry in _entries(f"{folder}/jobs") if JOB_ID_PATTERN.fullmatch(entry)]
        job_id = max(job_ids)
        job = f"{folder}/jobs/{job_id}"
        record = _read(f"{job}/job.json")
        if record["state"] not in FINAL or record["state"] == LOST or record["ended_at"] is None:
            return None
        try:
            beat = _read(f"{job}/heartbeat/0.json")
        except FileNotFoundError:
            beat = {}
        attempts, saved = record["attempts"], record["goes_on_from"] or {}
        first_step = attempts[-1]["first_step"] if attempts else saved.get("checkpoint_step")
        step = beat["step"] if beat else None
        if attempts and first_step and beat and not (step and beat["attempt"] == attempts[-1]["attempt"]):
            # JobRecord.placed() has to determine the step.
            return None
        progress = beat["progress"] or {} if beat else saved
        notes = f"{folder}/notes.json"
        # Few runs have notes, and an open() that fails takes five times as long.
        said = RunNotes.of_json(_read(notes)) if os.access(notes, os.F_OK) else NOTHING_SAID
        return RunSummary(
            name=name,
            run_id=identity["run_id"],
            parent=identity["parent"],
            state=record["state"],
            cause=record["cause"],
            job_id=job_id,
            num_jobs=len(job_ids),
            created_at=record["created_at"],
            ended_at=record["ended_at"],
            world_size=record["world_size"],
            nodes=attempts[-1]["nodes"] if attempts else None,
            backend=record["backend"],
            restarts=record["restarts"],
            step=step if beat else first_step,
            total_steps=progress.get("total_steps"),
            loss=progress.get("loss"),
            validation_loss=progress.get("validation_loss"),
            labels=said.applied(record["labels"]),
            notes=said.notes,
            archived=said.archived,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _entries(folder: str | Path) -> list[str]:
    """Return the names in a folder as strings; creating 5,000 Paths would take longer than reading the
    files.
    """
    return os.listdir(folder)


def _read(path: str) -> Any:
    """Return the JSON value in a small file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Three times as fast as json. It refuses NaN, which json accepts; such a run is read by summary_of.
        return orjson.loads(os.read(descriptor, RECORD_BYTES))
    finally:
        os.close(descriptor)


def why_no_run(run: RunDir) -> str | None:
    """Return why a folder with a run.json and without a job is not a run; None if it is one."""
    identity = run.record()
    if isinstance(identity, dict) and "run_id" in identity:
        return None
    return (
        f"{display(run.run_json)}: has no run_id, so the folder is not a run. Move it out of the output "
        "directory."
    )


def summary_of(run: RunDir, now: float) -> RunSummary:
    """Return the line of one run."""
    identity, job = run.record(), run.newest_job()
    if job is None and (words := why_no_run(run)):
        raise RecordError(words)
    identity = identity if isinstance(identity, dict) else {}
    record, state, cause = job_with_end(job, now) if job else (None, NO_JOB, None)
    beat = Heartbeat.read(job.heartbeat(0)) if job else None
    beat = record.placed(beat) if record and beat else beat
    progress = beat.progress if beat else record.goes_on_from if record else None
    said = notes_of(run)
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
        nodes=record.attempts[-1].nodes if record and record.attempts else None,
        backend=getattr(record, "backend", None),
        restarts=record.restarts if record else 0,
        labels=said.applied(record.labels if record else {}),
        notes=said.notes,
        archived=said.archived,
        step=beat.step if beat else record.first_step if record else None,
        eta_seconds=seconds_left(state, beat),
        asked=asked_of(job) if job and state in ACTIVE else None,
        **{key: getattr(progress, key, None) for key in ("total_steps", "loss", "validation_loss")},
    )


def lost_words(job: JobDir, now: float) -> str:
    """Return how to continue a LOST job, and whether its ranks still run: a node agent's ranks may outlive
    the supervisor.
    """
    name, record = job.run.name, JobRecord.read(job.job_json)
    resume = f"`nbtrain resume {name}` continues it"
    if record is None or record.backend in ENGINES:
        return resume
    steps = []
    for path in job.heartbeats():
        with contextlib.suppress(FileNotFoundError):
            fresh = now - path.stat().st_mtime < RANK_SILENCE_SECONDS
            if (beat := Heartbeat.read(path)) and (
                beat.process.alive() or (fresh and beat.process.elsewhere())
            ):
                steps.append(beat.step)
    if not steps:
        return resume
    ranks = f"its ranks still run (step {max(steps):,}): `nbtrain cancel {name}` makes them save and exit"
    return f"{ranks}, and {resume}"


def job_with_end(job: JobDir, now: float) -> tuple[JobRecord | None, str, str | None]:
    """Return (record, state, cause) of a job. The record, None without job.json, has the job's end if any."""
    record, state, cause = read_job(job, now)
    if record is not None and state not in ACTIVE and record.ended_at is None:
        record = _with_end(job, record)
    return record, state, cause


def _with_end(job: JobDir, record: JobRecord) -> JobRecord:
    """Return the record with `ended_at`, which job.json does not hold.

    The time is taken from the job's final record (base/last_words.py). A job without one, which is LOST,
    ended at its newest sign of life: a heartbeat, or job.json's time stamp.
    """
    if (words := last_words.kept(record)) and words.ended_at is not None:
        return words
    signed_at = job.job_json.stat().st_mtime
    beats = [(beat, path.stat().st_mtime) for path in job.heartbeats() if (beat := Heartbeat.read(path))]
    if not beats:
        return replace(record, ended_at=signed_at)
    last, written_at = max(beats, key=lambda pair: pair[0].time)
    # Both time stamps are from one disk: in a copy of the run they are new, but their difference is valid.
    later = max(0.0, signed_at - written_at)
    stamps = dict(record.stamps)
    if stamp := last.stamps.get("time"):
        stamps["ended_at"] = replace(stamp, seconds=stamp.seconds + later)
    return replace(record, ended_at=last.time + later, stamps=stamps)


def shorter(cause: str, most: int = CAUSE_LENGTH) -> str:
    """Return the first sentences of a cause that fit into `most` characters, with "..." if some are omitted.

    A first sentence that is longer is cut after a word.
    """
    whole = " ".join(cause.split())
    if len(whole) <= most:
        return whole
    ends = [match.start() for match in re.finditer(r"; |\. (?=[A-Z`])", whole)]
    if fitting := [end for end in ends if end <= most - 3]:
        return f"{whole[: fitting[-1]]}..."
    first = whole[: most - 3]
    return f"{first.rpartition(' ')[0] or first}..."


def runs_table(entries: Sequence[RunSummary]) -> str:
    """Return the lines of `nbtrain runs`, as text in columns."""
    if not entries:
        return f"No runs under {output_root()}. `nbtrain submit gpt-tiny` starts one."
    titles = ["NAME", "STATE", "STEP", "LOSS", "VALIDATION", "JOBS", "SUBMITTED (UTC)", "CAUSE"]
    labelled = any(entry.labels for entry in entries)
    rows = [[*titles[:-1], "LABELS", titles[-1]] if labelled else titles]
    for entry in entries:
        of = f"/{entry.total_steps:,}" if entry.total_steps else ""
        step = f"{entry.step:,}{of}" if entry.step is not None else "-"
        losses = ("-" if loss is None else f"{loss:.4f}" for loss in (entry.loss, entry.validation_loss))
        submitted = utc(entry.created_at, "%Y-%m-%d %H:%M")
        cause = shorter(entry.cause or "")
        if entry.state == LOST:
            cause += f"; `nbtrain resume {entry.name}` continues it"
        row = [entry.name, entry.state, step, *losses, str(entry.num_jobs), submitted]
        labels = ",".join(f"{key}={value}" for key, value in entry.labels.items())
        rows.append([*row, *([labels] if labelled else []), cause])
    return "\n".join(aligned(rows))
