"""A run in lines of text: progress, what a resume kept, status."""

import time
from typing import Any

from nbtrain.base import amounts, files
from nbtrain.base.events import read_events
from nbtrain.base.jobstate import ACTIVE, LOST, QUEUED, SUSPENDED
from nbtrain.base.records import JobRecord, ResumeCertificate
from nbtrain.base.rundir import NOT_USED, RunDir
from nbtrain.monitor.job_text import engine_words
from nbtrain.monitor.run_view import RunView
from nbtrain.monitor.runs import lost_words
from nbtrain.monitor.snapshot import in_sight

STATUS_EVENTS = 8


def progress_line(run: RunDir) -> str:
    """State, step, tokens, loss, rate and time left in one line: for a terminal and a log."""
    view = RunView(run)
    state, heartbeat = view.state, view.heartbeats().get(0)
    working = state in ACTIVE and state != SUSPENDED
    parts = [f"{run.name} {state}"]
    if heartbeat and (progress := heartbeat.progress):
        parts.append(f"step {heartbeat.step:,}/{progress.total_steps:,}")
        consumed, target = amounts.count(progress.consumed_tokens), amounts.count(progress.train_tokens)
        parts.append(f"tokens {consumed}/{target}")
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.4f}")
        if progress.validation_loss is not None:
            parts.append(f"validation {progress.validation_loss:.4f}")
        if progress.overflow_steps:
            parts.append(amounts.counted(progress.overflow_steps, "overflow step"))
        if progress.tokens_per_second is not None:
            parts.append(f"{progress.tokens_per_second:,.0f} tokens/s")
        if progress.eta_seconds is not None and working:
            parts.append(f"{amounts.elapsed(progress.eta_seconds)} left")
        if heartbeat.phase != "train" and working:
            parts.append(heartbeat.phase)
    elif (job := view.job) and (record := JobRecord.read(job.job_json)) and record.first_step:
        parts.append(f"step {record.first_step:,}")
    if view.cause and (not working or state == QUEUED):
        parts.append(view.cause)
    if state == LOST and view.job:
        parts.append(lost_words(view.job, time.time()))
    if (said := _engine_word(view)) and said.get("seen") is False:
        parts.append("engine not seen")
    return " | ".join(parts)


def engine_lines(view: RunView) -> list[str]:
    """What the engine of an active job said last, and whether it can be seen."""
    said = _engine_word(view)
    return [engine_words(said, time.time() - said.get("asked_at", 0.0))] if said else []


def _engine_word(view: RunView) -> dict[str, Any] | None:
    return files.read_json(view.job.engine_json) if view.job and view.state in ACTIVE else None


def resume_lines(run: RunDir) -> list[str]:
    """What the newest job kept of its checkpoint, and which newer checkpoints it passed over, and why."""
    job = run.newest_job()
    made = ResumeCertificate.read(job.resume_json) if job else None
    if job is None or made is None:
        return []
    passed = (event for event in read_events(job) if NOT_USED in str(event.get("message")))
    newer = (str(event["message"]) for event in passed if event.get("step", 0) > made.step)
    return [str(made), *(f"  {message.rpartition('; ')[0]}" for message in dict.fromkeys(newer))]


def status_text(view: RunView) -> str:
    """A run on one screen of a terminal: state, progress, ranks, last events."""
    snapshot = view.snapshot()
    job, ranks = snapshot["job"], snapshot["ranks"]
    lines = [progress_line(view.run)]
    if job:
        lines.append(
            f"job {job['job_id']}: {job['world_size']} rank(s) on backend {job['backend']}, "
            f"{amounts.elapsed(job['elapsed_seconds'])}, attempt {job['attempt']}, "
            f"{job['restarts']} restart(s)"
        )
        lines += engine_lines(view)
    lines += resume_lines(view.run)
    for rank in ranks[:16]:
        age = rank["heartbeat_age_seconds"]
        seen = f", heard {amounts.elapsed(age)} ago" if age is not None and snapshot["active"] else ""
        words = f": {rank['message']}" if rank["message"] else ""
        lines.append(f"  rank {rank['rank']}: {rank['phase']}, step {rank['step'] or 0}{seen}{words}")
    if len(ranks) > 16:
        lines.append(f"  and {len(ranks) - 16} more ranks")
    if snapshot["events"]:
        lines.append("last events:")
        for event in in_sight(snapshot["events"], STATUS_EVENTS):
            moment = time.strftime("%H:%M:%S", time.localtime(event["time"]))
            lines.append(f"  {moment} {event['kind']}: {event['message']}")
    return "\n".join(lines)
