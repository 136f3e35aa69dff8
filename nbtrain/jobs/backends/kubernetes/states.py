"""Map the status of all four kinds of objects to nbtrain's job states, with one table.

Missing fields are tolerated. If the name of a state is not in the table, the last known state is kept, and
`known` is False.
"""

from dataclasses import dataclass
from typing import Any

from nbtrain.base.run_directory.jobstate import FAILED, QUEUED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.jobs.backends.kubernetes.tolerant import items, mapping, number

# {phase or type of a condition, in lower case: job state}. "error" is what a platform's console shows.
WORDS = {
    "created": QUEUED,
    "pending": QUEUED,
    "queued": QUEUED,
    "initialized": QUEUED,
    "initializing": QUEUED,
    "running": RUNNING,
    "restarting": RESTARTING,
    "replicafailure": RESTARTING,
    "suspended": SUSPENDED,
    "paused": SUSPENDED,
    "succeeded": SUCCEEDED,
    "complete": SUCCEEDED,
    "completed": SUCCEEDED,
    "failed": FAILED,
    "error": FAILED,
}
# Order in which true conditions count: a failed DeepSpeedJob is also Completed, and older conditions may stay
# true.
RANK = (FAILED, SUCCEEDED, SUSPENDED, RESTARTING, RUNNING, QUEUED)


@dataclass(frozen=True)
class ObjectWord:
    """The cluster's report on a job's object."""

    state: str
    reason: str
    """Reason that the cluster reports; "" if it reports no reason."""
    known: bool = True
    """Whether the name of the object's state is in the table.

    If not, `state` is the last known state.
    """


def object_word(item: dict[str, Any], last: str = QUEUED) -> ObjectWord:
    """Return the state of an object of any kind; `last` is the last known state."""
    status = mapping(item.get("status"))
    conditions = _conditions(status)
    told = [condition for condition in conditions if condition["status"] == "True"]
    said = [(WORDS.get(condition["type"].lower()), _reason(condition)) for condition in told]
    phase = str(status.get("phase") or "")
    if phase:
        # A phase summarizes the conditions, which contain the reason.
        state = WORDS.get(phase.lower())
        if state is None:
            return ObjectWord(last, f"phase {phase}", known=False)
        reasons = {known: reason for known, reason in said if known}
        if FAILED in reasons:
            state = FAILED
        # A pause is not reported as a condition. Until its pods are gone, the object still runs.
        if state not in (FAILED, SUCCEEDED) and _paused(item) and not _active(status):
            state = SUSPENDED
        if state == QUEUED and number(status.get("backoffCount")):
            state = RESTARTING
        return ObjectWord(state, reasons.get(state, ""))
    for state in RANK:
        if reason := next((reason for known, reason in said if known == state), None):
            if state == QUEUED and _active(status):
                continue
            return ObjectWord(state, reason)
    if _active(status):
        return ObjectWord(RUNNING, "")
    if _paused(item):
        return ObjectWord(SUSPENDED, "suspended on request")
    if unknown := next((one["type"] for one, (state, _) in zip(told, said) if state is None), None):
        return ObjectWord(last, f"condition {unknown}", known=False)
    return ObjectWord(QUEUED, "")


def conditions_table(item: dict[str, Any]) -> list[dict[str, str]]:
    """Return the type, status, reason, message and time of the last change of each condition."""
    return _conditions(mapping(item.get("status")))


def restarts(item: dict[str, Any]) -> int:
    """Return the number of restarts that the cluster has counted."""
    status = mapping(item.get("status"))
    tasks = sum(number(mapping(task).get("restartCount")) for task in items(status.get("tasks")))
    return max(number(status.get("backoffCount")), tasks)


def task_pods(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of every task in a DeepSpeedJob's status.

    Some versions of the operator list a task's pods under `replicas`, others under `status`.
    """
    tasks = items(mapping(item.get("status")).get("tasks"))
    return [
        mapping(pod)
        for task in tasks
        for pod in items(mapping(task).get("replicas")) or items(mapping(task).get("status"))
    ]


def _conditions(status: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "type": str(condition.get("type") or ""),
            "status": str(condition.get("status") or "Unknown"),
            "reason": str(condition.get("reason") or ""),
            "message": str(condition.get("message") or ""),
            "last_change": str(condition.get("lastTransitionTime") or ""),
        }
        for condition in map(mapping, items(status.get("conditions")))
    ]


def _reason(condition: dict[str, str]) -> str:
    words = [word for word in (condition["reason"], condition["message"]) if word and word != "-"]
    return ": ".join(words) or condition["type"]


def _paused(item: dict[str, Any]) -> bool:
    spec = mapping(item.get("spec"))
    modes = (
        mapping(mapping(spec.get("runMode")).get("pause")).get("enabled"),
        mapping(spec.get("runPolicy")).get("suspend"),
        spec.get("suspend"),
    )
    return True in modes


def _active(status: dict[str, Any]) -> bool:
    """Return whether pods are running, from a TrainJob's list of jobs or a DeepSpeedJob's counter."""
    if number(mapping(status.get("aggregate")).get("running")):
        return True
    jobs = [mapping(job) for job in items(status.get("jobsStatus"))]
    return any(number(job.get("active")) or number(job.get("ready")) for job in jobs)
