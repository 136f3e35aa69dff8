"""Advice for a run: what to do after a failure, what a job waits for, and since when the loss is NaN.

The module also finds the marks for charts: restarts, resumes, rollbacks and steps with NaN, at which a curve
starts again or has a gap.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtrain.base.errors import ConfigError, NbtrainError
from nbtrain.base.run_directory.bad_steps import EFFECTS
from nbtrain.base.run_directory.end_kinds import RECURRING
from nbtrain.base.run_directory.jobstate import FAILED, FAILURES, LOST, RESTARTING
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord, Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.monitor.status.resume_start import measure_again, only_measured, resume_start

# Maximum number of steps with NaN that are marked.
MOST_BAD_STEPS = 20


def advice(run: RunDir, state: str, attempt: AttemptRecord | None, step: int | None) -> str:
    """Return advice on what to do about a FAILED or LOST job; "" for any other state.

    `attempt` is the job's newest attempt; None if the job had no attempt.
    """
    if state not in FAILURES:
        return ""
    start = resume_start(run)
    if only_measured(run):
        going_on = (
            f"The run only measured performance, so there is nothing to resume; {measure_again(run.name)}."
        )
    elif start.torn:
        going_on = (
            f"No checkpoint is complete ({start.torn_names}), so Resume is refused. Put a complete copy "
            f"of one of them into {display(run.model)}, or remove these folders to start again at step 0."
        )
    elif start.step is None:
        going_on = "No checkpoint was saved, so Resume starts again at step 0."
    else:
        again = max(0, (step or 0) - start.step)
        lost = f" and trains {amounts.counted(again, 'step')} again" if again else ""
        going_on = f"A resume continues from the checkpoint of step {start.step:,}{lost}."
    if state == LOST:
        return going_on
    stays = attempt is not None and (attempt.reason in RECURRING or bool(attempt.given_up))
    first = "Fix the cause first. " if stays else ""
    return f"{first}The logs show the last traceback, if there is one. {going_on}"


# {kind of bad step: (key in the section stability, policy with which a run continues after it)}, see
# train/health/stability.py. If the weights are NaN, skipping a step does not help.
_CURES = {"nan": ("on_nan", "skip"), "weights": ("on_nan", "rollback"), "spike": ("on_loss_spike", "skip")}
# With a fixed loss scale, every step would overflow again.
_SCALE = "precision.fp16.loss_scale"


def remedies(run: RunDir, state: str, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings that let a job continue after a bad step ended it.

    The form is [{"words": label of a button, "title", "overrides": settings of the resume}]. The list is
    empty after any other end, and if a resume would be refused because no checkpoint is complete or a rule
    forbids the policy.
    """
    if state != FAILED:
        return []
    ends = [event for event in events if event.get("kind") == "error" and event.get("bad") in _CURES]
    if not ends or _SCALE in ends[-1]["message"] or only_measured(run):
        return []
    key, policy = _CURES[ends[-1]["bad"]]
    saved, step = resume_start(run), ends[-1]["step"]
    overrides = {f"stability.{key}": policy}
    if saved.torn or not _is_allowed(run, overrides):
        return []
    start = "the start" if saved.step is None else f"step {saved.step:,}"
    return [
        {
            "words": f"Resume from {start} and skip step {step:,}",
            "title": f"Resume with stability.{key} = {policy}: {EFFECTS[policy]}.",
            "overrides": overrides,
        }
    ]


def _is_allowed(run: RunDir, overrides: Mapping[str, Any]) -> bool:
    """Return whether the rules allow a resume with these settings.

    A rollback, for example, needs checkpoints.
    """
    # Imported here, because it loads pydantic, and few runs end because of a bad step.
    from nbtrain.config.load.edits import with_overrides
    from nbtrain.config.load.resolved_cache import kept_config

    try:
        config = kept_config(run.config_yaml)
    except NbtrainError:
        return True  # a resume reads the same file and reports the error
    try:
        with_overrides(config, overrides)
    except ConfigError:
        return False
    return True


def nan_words(curve: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Describe since which step the loss is NaN, such as "NaN since step 121 (samples 960 to 967, rank 1)".

    The text is "" if the newest loss is a number. `curve` is the loss curve of a description; its key "bad"
    has the ranges of steps with NaN.
    """
    bad = [event for event in events if event.get("bad") in ("nan", "weights")]
    newest = curve["steps"][-1] if curve["steps"] else 0
    # The step that ends a job is reported as an event but is not in the curve.
    ends = bool(bad) and bad[-1]["step"] > newest
    gap = next((first for first, last in reversed(curve.get("bad") or []) if last >= newest), None)
    if gap is None and not ends:
        return ""
    since = gap if gap is not None else bad[-1]["step"]
    event = next((event for event in bad if event["step"] == since), None)
    if event is None:
        return f"NaN since step {since:,}"
    first, last = event["positions"]
    where = [f"samples {first:,} to {last - 1:,}"]
    if ranks := event.get("ranks"):
        where.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}")
    return f"NaN since step {since:,} ({', '.join(where)})"


def waiting(run: RunDir, state: str, events: Sequence[Mapping[str, Any]], now: float) -> str:
    """Describe what a job between two attempts waits for, and for how long at most; "" for any other job."""
    if state != RESTARTING:
        return ""
    for event in reversed(events):
        if event.get("kind") == "warning" and "needed_bytes" in event:
            return _waits_for_disk(run, event, now)
        if event.get("kind") == "restart" and "wait_seconds" in event:
            left = max(0.0, event["time"] + event["wait_seconds"] - now)
            return f"The next attempt starts automatically in {amounts.elapsed(left)}."
        if event.get("kind") == "state" and event.get("state") not in (RESTARTING, None):
            break
    return "The next attempt starts automatically."


def _waits_for_disk(run: RunDir, event: Mapping[str, Any], now: float) -> str:
    needed, free = event["needed_bytes"], shutil.disk_usage(run.path).free
    if free >= needed:
        return "There is enough disk space again, so the next attempt starts automatically."
    words = (
        f"Waiting for disk space: {amounts.size(needed)} is needed, but only {amounts.size(free)} is free. "
        "The job continues automatically once there is enough space."
    )
    if "wait_seconds" not in event:
        return words
    left = max(0.0, event["time"] + event["wait_seconds"] - now)
    return f"{words} Otherwise the job fails in {amounts.elapsed(left)}."


def marks(
    run: RunDir, records: Iterable[JobRecord], events: Iterable[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the marks for a run's charts: [{"step", "time", "kind", "words"}].

    The kind is resume, restart, rollback or nan. Steps with NaN come last; the others are ordered by time.
    `records` are the run's job records, oldest first; `events` are the newest job's events.
    """
    rolled = {(rollback.job_id, rollback.attempt) for rollback in Rollback.read_all(run.rollbacks_json)}
    found: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        preempted = {preemption.attempt for preemption in record.preemptions}
        for before, attempt in zip([None, *record.attempts], record.attempts):
            step = attempt.resumed_from_step or attempt.first_step or 0
            if before is None:
                if number and step:
                    found.append(_mark(step, attempt.started_at, "resume", record.job_id))
                continue
            # An attempt that follows a preemption is not counted as a restart.
            kind = "resume" if before.attempt in preempted else "restart"
            kind = "rollback" if (record.job_id, before.attempt) in rolled else kind
            why = f": {before.cause}" if before.cause else ""
            found.append(_mark(step, attempt.started_at, kind, f"attempt {attempt.attempt}{why}"))
    bad = [event for event in events if event.get("bad") in ("nan", "weights")]
    return [
        *found,
        *(
            {"step": event["step"], "time": event["time"], "kind": "nan", "words": event["message"]}
            for event in bad[-MOST_BAD_STEPS:]
        ),
    ]


def _mark(step: int, time: float, kind: str, what: str) -> dict[str, Any]:
    return {"step": step, "time": time, "kind": kind, "words": f"{kind} at step {step:,}: {what}"}
