"""Terminal output about a run: its progress as one line, and its status as a report."""

import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.printing.report import INDENT, Block, Items, Report, Sentence, Table
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import LOST, QUEUED, RESTARTING, STARTING, SUSPENDED
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rank_phases import WAITING_PHASES, activity_of
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import NOT_USED, JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.config.yaml_source import read_yaml
from nbtrain.monitor.job.conditions import event_part, in_sight
from nbtrain.monitor.job.job_description import engine_words, job_status
from nbtrain.monitor.job.rank_records import read_heartbeats
from nbtrain.monitor.logs.logs import log_path, read_log
from nbtrain.monitor.logs.tracebacks import whose
from nbtrain.monitor.run.rank_rows import heartbeat_text, rank_rows
from nbtrain.monitor.status.run_status import RunStatus
from nbtrain.monitor.status.spending import spending_line
from nbtrain.monitor.status.status_records import (
    NOTHING_SUBMITTED,
    job_with_end,
    lost_words,
    read_status,
    status_of,
)

STATUS_EVENTS = 8
STATUS_RANKS = 16
RANK_TITLES = ("RANK", "PHASE", "ACTIVITY", "STEP", "HEARTBEAT", "MESSAGE")
# {state: (why there are no log lines, used if the job has no cause; when lines will follow)}
WAITING = {
    QUEUED: ("its supervisor has not started yet", "when the job starts"),
    STARTING: ("its ranks have written nothing yet", "when its ranks write to the log"),
    RESTARTING: ("it waits before the next attempt", "when the job starts again"),
    SUSPENDED: ("it is paused", "when the job is resumed"),
}


def progress_line(run: RunDir) -> str:
    """Return a run's state, step, tokens, loss, throughput, time left and cause in one line."""
    status = read_status(run, time.time(), with_notes=False)
    return " | ".join([*_progress(status), *_reasons(run, status)])


def _progress(status: RunStatus) -> list[str]:
    """Return a run's state and progress as parts of a line."""
    parts = [f"{status.name} {status.state}"]
    if status.step is not None and (status.progress or status.step):
        parts.append(f"step {status.steps_text()}")
    if progress := status.progress:
        consumed, target = amounts.count(progress.consumed_tokens), amounts.count(progress.goal_tokens)
        parts.append(f"tokens {consumed}/{target}")
        losses = {"loss": progress.loss, "validation": progress.validation_loss}
        parts += [f"{name} {value:.4f}" for name, value in losses.items() if value is not None]
        if progress.steps_without_loss:
            steps = amounts.counted(progress.steps_without_loss, "step")
            parts.append(f"{steps} without a token in the loss")
        if progress.overflow_steps:
            parts.append(amounts.counted(progress.overflow_steps, "overflow step"))
    if status.mean_tokens_per_second is not None:
        parts.append(f"{status.mean_tokens_per_second:,.0f} tokens/s")
    if status.time_left:
        parts.append(f"{status.time_left} left")
    if status.active and status.phase and status.phase != "train":
        parts.append(activity_of(status.phase))
    return parts


def _reasons(run: RunDir, status: RunStatus) -> list[str]:
    """Return the cause of the state, how a LOST run continues, and whether the scheduler is unreachable."""
    job = run.newest_job()
    # While a job restarts, its cause is about the attempt before.
    reasons = [one_line(status.cause)] if status.cause and status.state != RESTARTING else []
    if status.state == LOST and job:
        reasons.append(lost_words(job, time.time()))
    if (report := _engine_report(run, status)) and report.get("seen") is False:
        reasons.append("scheduler not reachable")
    return reasons


def one_line(text: str) -> str:
    """Return a message without line breaks, which Python's error messages may contain."""
    return " ".join(text.split())


def waiting_line(run: RunDir, rank: int | str) -> str | None:
    """Explain why a followed log has no lines yet; None if the job is training or has ended."""
    job = run.newest_job()
    if job is None:
        return None
    state, cause = read_state(job, time.time())
    if state not in WAITING or (state == STARTING and log_path(job, rank).exists()):
        return None
    why, when = WAITING[state]
    return f"{run.name} is {state}: {one_line(cause) if cause else why}; log lines follow {when}."


def no_log_line(job: JobDir, rank: int | str) -> str:
    """Explain why a log is empty, and name the command that shows the newest log that is not empty."""
    name, which = job.run.name, f"the log of rank {rank}" if isinstance(rank, int) else whose(rank)
    state, cause = read_state(job, time.time())
    why = f": {one_line(cause)}" if cause else ""
    said = f"{name}: {which} in job {job.job_id} is empty; the job is {state}{why}"
    others = (job.run.job(job_id) for job_id in reversed(job.run.job_ids()) if job_id != job.job_id)
    with_log = (other for other in others if read_log(log_path(other, rank), limit_bytes=1).size_bytes)
    if other := next(with_log, None):
        named = "" if rank == 0 else f" --rank {rank}"
        said += f". Job {other.job_id} has a log: run `nbtrain logs {name}{named} --job {other.job_id}`"
    return f"{said.rstrip('.')}."


def engine_lines(run: RunDir, status: RunStatus) -> list[str]:
    """Return the scheduler's last report on an active job as a list of lines; [] without a report."""
    report = _engine_report(run, status)
    return [engine_words(report, time.time() - report.get("asked_at", 0.0))] if report else []


def _engine_report(run: RunDir, status: RunStatus) -> dict[str, Any] | None:
    job = run.newest_job()
    return files.read_json_unsynced(job.engine_json) if job and status.active else None


def resume_report(run: RunDir) -> list[Block]:
    """Return the newest job's resume report, and the newer checkpoints that it skipped with the reasons.

    A skipped checkpoint is no longer listed once the run has a complete checkpoint at that step or later,
    because the next resume uses the complete one. The list is empty if the job did not resume.
    """
    job = run.newest_job()
    made = ResumeCertificate.read(job.resume_json) if job else None
    if job is None or made is None:
        return []
    passed = [event for event in read_events(job) if NOT_USED in str(event.get("message"))]
    known = max(made.step, newest_checkpoint_step(run) or 0) if passed else made.step
    newer = (str(event["message"]) for event in passed if event.get("step", 0) > known)
    skipped = [message.rpartition("; ")[0] for message in dict.fromkeys(newer)]
    return [Sentence(str(made)), Items(skipped)]


def status_report(run: RunDir) -> Report:
    """Return a run's status for one terminal screen: state, progress, ranks and last events.

    Only records are read, not metrics files, so the time does not grow with the number of steps.
    """
    now, job = time.time(), run.newest_job()
    record, state, cause = job_with_end(job, now) if job else (None, *NOTHING_SUBMITTED)
    heartbeats = read_heartbeats(job, record)
    status = status_of(run, job, record, state, cause, heartbeats.get(0))
    events = read_events(job) if job else []
    engine = engine_lines(run, status) if job else []
    lines = [reason for reason in _reasons(run, status) if not any(reason in line for line in engine)]
    if record:
        entry = job_status(record, status.active, events, now)
        heard = "last sign of life after " if state == LOST else ""
        lines.append(
            f"job {entry.job_id}: {entry.ranks_text} on backend {entry.backend}, "
            f"{heard}{amounts.elapsed(entry.elapsed_seconds)}, attempt {entry.attempt}, {entry.restarts_text}"
        )
        cost = spending_line(run, _device(run), now)
        lines += [f"cost: {cost}"] if cost else []
        lines += [f"saves: {entry.saving}"] if entry.saving else []
        lines += engine
    blocks = [*map(Sentence, lines), *resume_report(run)]
    rows = rank_rows(job, record, heartbeats, None, now, state)
    return Report(
        " | ".join(_progress(status)), [*blocks, *_ranks(rows, status.active), _last_events(events)]
    )


def _device(run: RunDir) -> str:
    """Return resources.device from a run's config.yaml; "" if there is no such file.

    Raises ConfigError if the file is invalid. Only then is the schema loaded, because loading it takes longer
    than everything else that a status needs.
    """
    if not run.config_yaml.is_file():
        return ""
    resources = read_yaml(run.config_yaml).value.get("resources")
    device = resources.get("device") if isinstance(resources, dict) else None
    if isinstance(device, str):
        return device
    from nbtrain.config.load import load_resolved

    return load_resolved(run.config_yaml).resources.device


def _ranks(ranks: list[dict[str, Any]], active: bool) -> list[Block]:
    if all(rank["phase"] in WAITING_PHASES for rank in ranks):
        # No rank has reported yet, which the line about the job already says.
        return []
    rows = [
        (
            str(rank["rank"]),
            rank["phase"],
            rank["activity"],
            rank["step"],
            heartbeat_text(rank, active),
            one_line(rank["message"]),
        )
        for rank in ranks[:STATUS_RANKS]
    ]
    # Omit columns that have no value.
    filled = [at for at in range(len(RANK_TITLES)) if any(row[at] not in ("", None) for row in rows)]
    table = Table([RANK_TITLES[at] for at in filled], [[row[at] for at in filled] for row in rows], "Ranks")
    more = len(ranks) - STATUS_RANKS
    return [table, Sentence(f"{INDENT}and {amounts.counted(more, 'more rank')}")] if more > 0 else [table]


def _last_events(events: list[dict[str, Any]]) -> Table:
    rows = [
        (amounts.utc(event["time"], "%H:%M:%S"), event["kind"], one_line(event["message"] or ""))
        for event in map(event_part, in_sight(events, STATUS_EVENTS))
    ]
    return Table(("TIME (UTC)", "KIND", "MESSAGE"), rows, "Last events")
