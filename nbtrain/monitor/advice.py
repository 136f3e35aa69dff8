"""Advice on a run's job page that follows from its state: pending requests, and where it resumes.

Restarts, resumes and rollbacks are marks on the charts, because the curves start again there.
"""

import re
from collections.abc import Iterable
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.checkpoint_files import newest_saved_step
from nbtrain.base.files import read_json
from nbtrain.base.records import ControlRequest, JobRecord, Rollback
from nbtrain.base.rundir import JobDir, RunDir

# Errors that would recur with the same settings: jobs/supervisor/verdict.py.
_NOT_TRIED_AGAIN = re.compile(r"Error: |not tried again|out of (?:GPU|host) memory|the disk is full")


def asked_of(job: JobDir) -> str | None:
    """Return "stop" or "pause" while the supervisor has the ranks save and exit; None otherwise."""
    asked = read_json(job.control_pause)
    if asked and asked["pause"]:
        return "pause"
    request = ControlRequest.read(job.control_request)
    return "stop" if request is not None and request.action == "stop" else None


def advice(run: RunDir, state: str, cause: str | None, step: int | None) -> str:
    """Return what to do about a job that has failed or is lost; "" for any other state."""
    if state not in ("FAILED", "LOST"):
        return ""
    saved = newest_saved_step(run)
    if saved is None:
        going_on = "No checkpoint was saved: a resume begins at step 0."
    else:
        again = max(0, (step or 0) - saved)
        lost = f"; {amounts.counted(again, 'step')} since then are trained again" if again else ""
        going_on = f"A resume continues from the checkpoint of step {saved:,}{lost}."
    if state == "LOST":
        return going_on
    first = "Remove the cause first. " if _NOT_TRIED_AGAIN.search(cause or "") else ""
    return f"{first}The tab Logs begins with the last traceback, if there is one. {going_on}"


def marks(run: RunDir, records: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """Return [{"step", "time", "kind": resume, restart or rollback, "words"}] by time.

    `records` are the job records, oldest first.
    """
    rolled = {(one.job_id, one.attempt) for one in Rollback.read_all(run.rollbacks_json)}
    found: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        for before, attempt in zip([None, *record.attempts], record.attempts):
            step = attempt.resumed_from_step or attempt.first_step or 0
            if before is None:
                if number and step:
                    found.append(_mark(step, attempt.started_at, "resume", record.job_id))
                continue
            kind = "rollback" if (record.job_id, before.attempt) in rolled else "restart"
            why = f": {before.cause}" if before.cause else ""
            found.append(_mark(step, attempt.started_at, kind, f"attempt {attempt.attempt}{why}"))
    return found


def _mark(step: int, time: float, kind: str, what: str) -> dict[str, Any]:
    return {"step": step, "time": time, "kind": kind, "words": f"{kind} at step {step:,}: {what}"}
