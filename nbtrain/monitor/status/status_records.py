"""Reads a run's status from its records.

    read_status(RunDir, now)  ->  RunStatus

In a long list, most runs have ended, and their status can be read from three small files (_ended_status). For
all other runs, the records are read and validated, which takes five times as long.
"""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.jobstate import ACTIVE, DAMAGED, FINAL, LOST, NO_JOB
from nbtrain.base.run_directory.observed_state import ENGINES, ranks_run, read_job
from nbtrain.base.run_directory.records import (
    NO_SPEED,
    ControlRequest,
    Heartbeat,
    JobRecord,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import JOB_ID_PATTERN, JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.monitor.status.notes import RunNotes, notes_of
from nbtrain.monitor.status.resume_start import resume_words
from nbtrain.monitor.status.run_status import RunStatus

# A record has a few KB; longer records are left to read_status. For buffers of 128 KiB or more, malloc would
# map new memory for each file.
RECORD_BYTES = 64 << 10
# A rank updates its heartbeat once a second. A rank on another host counts as running if its heartbeat is not
# older than this number of seconds.
RANK_SILENCE_SECONDS = 10.0
NO_NOTES = RunNotes()
NOTHING_SUBMITTED = (NO_JOB, "nothing was submitted yet")
"""(state, cause) of a run without a job."""


def read_status(run: RunDir, now: float, with_notes: bool = True) -> RunStatus:
    """Return the status of a run. Raises RecordError if a record is damaged.

    With `with_notes` false, notes.json is not read, and the labels are those at submission.
    """
    job = run.newest_job()
    if job is None and (problem := why_no_run(run)):
        raise RecordError(problem)
    record, state, cause = job_with_end(job, now) if job else (None, *NOTHING_SUBMITTED)
    heartbeat = Heartbeat.read(job.heartbeat(0)) if job else None
    if record and heartbeat:
        heartbeat = record.placed(heartbeat)
    notes = notes_of(run) if with_notes else NO_NOTES
    return status_of(run, job, record, state, cause, heartbeat, notes)


def status_of(
    run: RunDir,
    job: JobDir | None,
    record: JobRecord | None,
    state: str,
    cause: str | None,
    heartbeat: Heartbeat | None,
    notes: RunNotes = NO_NOTES,
) -> RunStatus:
    """Build a run's status from records of its newest job that were already read.

    `heartbeat` is rank 0's heartbeat, as JobRecord.placed() returns it.
    """
    identity = run.record()
    identity = identity if isinstance(identity, dict) else {}
    training = heartbeat is not None and ranks_run(state, heartbeat)
    phase = heartbeat.phase if heartbeat and (training or state not in ACTIVE) else None
    return RunStatus(
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
        nodes=record.attempts[-1].nodes if record and record.attempts else None,
        backend=record.backend if record else None,
        restarts=record.restarts if record else 0,
        step=heartbeat.step if heartbeat else record.first_step if record else None,
        progress=(heartbeat and heartbeat.progress) or (record and record.goes_on_from) or None,
        phase=phase,
        ranks_run=training,
        asked=asked_of(job) if job and state in ACTIVE else None,
        labels=notes.applied(record.labels if record else {}),
        notes=notes.notes,
        archived=notes.archived,
    )


def asked_of(job: JobDir) -> str | None:
    """Return "stop" or "pause" if the job was requested to stop or pause; otherwise None."""
    asked = files.read_json(job.control_pause)
    if asked and asked["pause"]:
        return "pause"
    request = ControlRequest.read(job.control_request)
    return "stop" if request is not None and request.action == "stop" else None


def listed_status(root: Path, name: str, now: float) -> RunStatus | None:
    """Return the status of an entry of the output directory; None if the entry is not a run directory."""
    if ended := _ended_status(f"{root}/{name}", name):
        return ended
    if not os.access(f"{root}/{name}/run.json", os.F_OK):
        return _closed(root, name)
    return status_or_damage(RunDir(root / name), now)


def status_or_damage(run: RunDir, now: float) -> RunStatus:
    """Return the status of a run. If a record cannot be read, the state is DAMAGED and nothing is raised."""
    try:
        return read_status(run, now)
    except (RecordError, PermissionError) as error:
        cause = f"{files.not_allowed(error)}." if isinstance(error, PermissionError) else str(error)
        with contextlib.suppress(PermissionError, FileNotFoundError):
            return RunStatus(run.name, DAMAGED, cause, len(run.job_ids()), run.run_json.stat().st_mtime)
        return RunStatus(run.name, DAMAGED, cause, 0, run.path.stat().st_mtime)


def _closed(root: Path, name: str) -> RunStatus | None:
    """Return the status DAMAGED for a folder that this user may not read; None for any other folder."""
    try:
        (root / name / "run.json").stat()
    except PermissionError as error:
        return RunStatus(name, DAMAGED, f"{files.not_allowed(error)}.", 0, (root / name).stat().st_mtime)
    except OSError:
        pass
    return None


def _ended_status(folder: str, name: str) -> RunStatus | None:
    """Return the same status as read_status(), but only if the newest job has recorded its end.

    Returns None for all other runs.
    """
    try:
        identity = _read(f"{folder}/run.json")
        # Creating Path objects would take longer than reading the files.
        job_ids = [entry for entry in os.listdir(f"{folder}/jobs") if JOB_ID_PATTERN.fullmatch(entry)]
        job_id = max(job_ids)
        job = f"{folder}/jobs/{job_id}"
        record = _read(f"{job}/job.json")
        if record["state"] not in FINAL or record["state"] == LOST or record["ended_at"] is None:
            return None
        try:
            heartbeat = _read(f"{job}/heartbeat/0.json")
        except FileNotFoundError:
            heartbeat = {}
        newest = record["attempts"][-1] if record["attempts"] else None
        saved = record["goes_on_from"]
        step = newest["first_step"] if newest else saved and saved["checkpoint_step"]
        progress = (heartbeat and heartbeat["progress"]) or saved
        if heartbeat:
            earlier = newest is not None and heartbeat["attempt"] != newest["attempt"]
            if newest and newest["first_step"] and (earlier or heartbeat["step"] in (0, step)):
                # JobRecord.placed() has to determine the step.
                return None
            step = heartbeat["step"]
            if earlier and heartbeat["progress"]:
                progress = {**progress, **NO_SPEED}
        notes_json = f"{folder}/notes.json"
        # Few runs have notes, and a failing open() takes five times as long as os.access().
        notes = RunNotes.of_json(_read(notes_json)) if os.access(notes_json, os.F_OK) else NO_NOTES
        return RunStatus(
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
            nodes=newest["nodes"] if newest else None,
            backend=record["backend"],
            restarts=record["restarts"],
            step=step,
            progress=TrainingProgress(**progress) if progress else None,
            phase=heartbeat["phase"] if heartbeat else None,
            labels=notes.applied(record["labels"]),
            notes=notes.notes,
            archived=notes.archived,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _read(path: str) -> Any:
    """Return the JSON value in a small file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # orjson is three times as fast as json. It rejects NaN, which json accepts, so such runs are left to
        # read_status.
        return orjson.loads(os.read(descriptor, RECORD_BYTES))
    finally:
        os.close(descriptor)


def why_no_run(run: RunDir) -> str | None:
    """Return why a folder with a run.json but no job is not a run; None if it is a run."""
    identity = run.record()
    if isinstance(identity, dict) and "run_id" in identity:
        return None
    return (
        f"{display(run.run_json)} has no run_id, so the folder is not a run. Move the folder out of the "
        "output directory."
    )


def lost_words(job: JobDir, now: float) -> str:
    """Describe how to continue a LOST job, and whether its ranks are still running without a supervisor."""
    name, record = job.run.name, JobRecord.read(job.job_json)
    resume = resume_words(job.run)
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
    ranks = (
        f"its ranks are still running (step {max(steps):,}): `nbtrain cancel {name}` makes them save and exit"
    )
    return f"{ranks}, and {resume}"


def job_with_end(job: JobDir, now: float) -> tuple[JobRecord | None, str, str | None]:
    """Return (record, state, cause) of a job. The record includes the job's end; None without job.json."""
    record, state, cause = read_job(job, now)
    if record is not None and state not in ACTIVE and record.ended_at is None:
        record = _with_end(job, record)
    return record, state, cause


def _with_end(job: JobDir, record: JobRecord) -> JobRecord:
    """Return the record with `ended_at`, which job.json does not contain.

    The time comes from the job's final record (base/run_directory/final_record.py). A job without a final
    record is LOST or was only tuned; its end is its newest sign of life: a heartbeat, a trial of DeepSpeed's
    autotuner, or the modification time of job.json.
    """
    if (words := final_record.read(record)) and words.ended_at is not None:
        return words
    signed_at = job.job_json.stat().st_mtime
    if record.autotune != "none":
        with contextlib.suppress(FileNotFoundError):
            signed_at = max(signed_at, (job.events / "tuner.jsonl").stat().st_mtime)
    beats = [(beat, path.stat().st_mtime) for path in job.heartbeats() if (beat := Heartbeat.read(path))]
    if not beats:
        return replace(record, ended_at=signed_at)
    last, written_at = max(beats, key=lambda pair: pair[0].time)
    # Both modification times are from the same disk. A copy of the run has new times, but their difference is
    # still valid.
    later = max(0.0, signed_at - written_at)
    stamps = dict(record.stamps)
    if stamp := last.stamps.get("time"):
        stamps["ended_at"] = replace(stamp, seconds=stamp.seconds + later)
    return replace(record, ended_at=last.time + later, stamps=stamps)
