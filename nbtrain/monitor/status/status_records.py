"""Read the status of a run from its records.

    read_status(RunDir, now)  ->  RunStatus

Most runs of a long list have ended, and three small files hold their status (_ended_status). All others are
read as records, which checks more and takes five times as long.
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

# A record has a few KB; a longer one is read by read_status. For a buffer of 128 KiB or more, malloc would
# map new memory for each file.
RECORD_BYTES = 64 << 10
# A rank renews its heartbeat once a second; a rank on another host that did so recently still runs.
RANK_SILENCE_SECONDS = 10.0
NO_NOTES = RunNotes()
NOTHING_SUBMITTED = (NO_JOB, "nothing was submitted yet")
"""State and cause of a run without a job."""


def read_status(run: RunDir, now: float, with_notes: bool = True) -> RunStatus:
    """Return the status of a run. Raises RecordError for a damaged record.

    Without notes, notes.json is not read, and the labels are the labels at submission.
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
    """Return the status of a run whose newest job's records were read before.

    `heartbeat` is rank 0's, after JobRecord.placed().
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
    """Return "stop" or "pause" while the supervisor makes the ranks save and exit; None otherwise."""
    asked = files.read_json(job.control_pause)
    if asked and asked["pause"]:
        return "pause"
    request = ControlRequest.read(job.control_request)
    return "stop" if request is not None and request.action == "stop" else None


def listed_status(root: Path, name: str, now: float) -> RunStatus | None:
    """Return the status of one run of an output directory; None if the entry is not a run directory."""
    if ended := _ended_status(f"{root}/{name}", name):
        return ended
    if not os.access(f"{root}/{name}/run.json", os.F_OK):
        return _closed(root, name)
    return status_or_damage(RunDir(root / name), now)


def status_or_damage(run: RunDir, now: float) -> RunStatus:
    """Return the status of one run, DAMAGED if a record cannot be read, so that the other runs are still
    listed.
    """
    try:
        return read_status(run, now)
    except (RecordError, PermissionError) as error:
        cause = f"{files.not_allowed(error)}." if isinstance(error, PermissionError) else str(error)
        with contextlib.suppress(PermissionError, FileNotFoundError):
            return RunStatus(run.name, DAMAGED, cause, len(run.job_ids()), run.run_json.stat().st_mtime)
        return RunStatus(run.name, DAMAGED, cause, 0, run.path.stat().st_mtime)


def _closed(root: Path, name: str) -> RunStatus | None:
    """Return the status of a folder that this user may not read; None if it is not a run directory."""
    try:
        (root / name / "run.json").stat()
    except PermissionError as error:
        return RunStatus(name, DAMAGED, f"{files.not_allowed(error)}.", 0, (root / name).stat().st_mtime)
    except OSError:
        pass
    return None


def _ended_status(folder: str, name: str) -> RunStatus | None:
    """Return the same status as read_status() for a run whose newest job has recorded its end; None for other
    runs.
    """
    try:
        identity = _read(f"{folder}/run.json")
        # A Path for each name would take longer than reading the files.
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
        # Few runs have notes, and an open() that fails takes five times as long.
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
        # Three times as fast as json. It refuses NaN, which json accepts; such a run is read by read_status.
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


def lost_words(job: JobDir, now: float) -> str:
    """Return how to continue a LOST job, and whether its ranks still run: a node agent's ranks may outlive
    the supervisor.
    """
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

    The time is taken from the job's final record (base/run_directory/final_record.py). A job without one,
    which is LOST or was only tuned, ended at its newest sign of life: a heartbeat, a trial of DeepSpeed's
    autotuner, or job.json's time stamp.
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
    # Both time stamps are from one disk: in a copy of the run they are new, but their difference is valid.
    later = max(0.0, signed_at - written_at)
    stamps = dict(record.stamps)
    if stamp := last.stamps.get("time"):
        stamps["ended_at"] = replace(stamp, seconds=stamp.seconds + later)
    return replace(record, ended_at=last.time + later, stamps=stamps)
