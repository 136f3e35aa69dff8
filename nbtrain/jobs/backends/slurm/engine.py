"""Slurm's own commands: called with a time limit, and what they print read tolerantly.

`scontrol show job -o` is read because it works on every version from 22.05 on, without accounting; it forgets
a job MinJobAge after its end, and after a controller that lost its state. Then `sacct` is asked, if the
cluster has accounting.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbtrain.base.errors import JobError
from nbtrain.base.jobstate import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.node_records import EngineWord
from nbtrain.jobs.backends.remote_backend import EngineAway, EngineUnseen

COMMAND_SECONDS = 30.0

# JobState of slurm/src/common/slurm_protocol_defs.c (job_state_string), versions 20.11 to 25.05.
STATES = {
    "PENDING": QUEUED,
    "CONFIGURING": QUEUED,
    "REQUEUED": QUEUED,
    "REQUEUE_FED": QUEUED,
    "REQUEUE_HOLD": QUEUED,
    "SPECIAL_EXIT": QUEUED,
    "RESV_DEL_HOLD": QUEUED,
    "POWER_UP_NODE": QUEUED,
    "RUNNING": RUNNING,
    "COMPLETING": RUNNING,
    "SIGNALING": RUNNING,
    "STAGE_OUT": RUNNING,
    "RESIZING": RUNNING,
    "EXPEDITING": RUNNING,
    "SUSPENDED": SUSPENDED,
    "STOPPED": SUSPENDED,
    "COMPLETED": SUCCEEDED,
    "CANCELLED": CANCELLED,
    "REVOKED": CANCELLED,
    "FAILED": FAILED,
    "TIMEOUT": FAILED,
    "DEADLINE": FAILED,
    "NODE_FAIL": FAILED,
    "BOOT_FAIL": FAILED,
    "LAUNCH_FAILED": FAILED,
    "RECONFIG_FAIL": FAILED,
    "OUT_OF_MEMORY": FAILED,
    "PREEMPTED": FAILED,
}

# Reasons of a job that waits, in words (slurm/src/common/slurm_protocol_defs.c, job_reason_string).
WAITING = {
    "None": "Slurm has not looked at it yet",
    "Priority": "jobs with a higher priority come first",
    "Resources": "the nodes that it needs are busy",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it depends on has failed; it will never start",
    "BeginTime": "Slurm starts it at a later time; after a lost node that takes about 2 minutes",
    "JobHeldUser": "held by its user; `scontrol release` frees it",
    "JobHeldAdmin": "held by an administrator",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionNodeLimit": "it asks for more or fewer nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "PartitionConfig": "its request does not fit the partition",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has the features that it asks for",
    "Licenses": "a license that it needs is in use",
    "InvalidAccount": "the account is not known",
    "InvalidQOS": "the quality of service is not known",
    "AccountNotAllowed": "the account may not use this partition",
    "QOSNotAllowed": "the quality of service may not use this partition",
    "Reservation": "it waits for its reservation",
    "Cleaning": "its last run is still being cleaned up",
    "launch_failed_requeued_held": "it could not be started, and is held; `scontrol release` frees it",
    "JobArrayTaskLimit": "an earlier task of its array runs",
    "JobHoldMaxRequeue": "it was put back too often, and is held; `scontrol release` frees it",
    "DeadLine": "it cannot end before its deadline",
    "NodeNotAvail": "a node that it needs is not available",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained, or kept for more urgent jobs",
    "ReservationDeleted": "its reservation was deleted",
    "MaxMemPerLimit": "it asks for more memory than a limit allows",
    "BurstBufferResources": "the burst buffer is in use",
    "BurstBufferStageIn": "its files are being copied to the burst buffer",
    "Prolog": "the nodes are being made ready for it",
    "FedJobLock": "the clusters of the federation agree on where it starts",
}
# Limits have dozens of reasons, such as AssocGrpCpuLimit and QOSMaxJobsPerUserLimit.
LIMITS = {
    "Assoc": "a limit of the account or its user is reached",
    "QOS": "a limit of the quality of service is reached",
    "MaxGRES": "a limit for GPUs is reached",
    "MaxNode": "a limit for nodes is reached",
    "Reserved_for": "its nodes are reserved",
}


@dataclass(frozen=True)
class SlurmJob:
    """What scontrol or sacct says about one job."""

    number: str
    state: str
    """Slurm's own word."""
    reason: str
    exit_code: str
    restarts: int
    start: float | None
    nodes: str
    end: float | None = None
    task: int = 0
    """Of an array."""
    name: str = ""
    comment: str = ""


def call(*arguments: str, folder: Path | None = None) -> str:
    """What a command prints, called in `folder`.

    Raises EngineUnseen if Slurm does not answer, EngineAway if it is not installed here, and JobError if it
    refuses.
    """
    program = shutil.which(arguments[0])
    if program is None:
        raise EngineAway(f"{arguments[0]} is not installed on this machine")
    try:
        answer = subprocess.run(
            [program, *arguments[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise EngineUnseen(f"{arguments[0]} gave no answer within {COMMAND_SECONDS:g} s") from None
    if answer.returncode == 0:
        return answer.stdout
    said = " ".join((answer.stderr or answer.stdout).split())
    if re.search(r"Unable to contact slurm|Connection (refused|timed out)|Socket timed out|Zero Bytes", said):
        raise EngineUnseen(said)
    raise JobError(f"{arguments[0]}: {said or f'exit code {answer.returncode}'}")


SINFO_FORMAT = "%P|%N|%c|%m|%G"


@dataclass(frozen=True)
class Place:
    """A node of a partition, as it is when it is up."""

    name: str
    """Of the partition."""
    default: bool
    """Whether jobs that name no partition go there."""
    node: str
    cpus: int
    memory_bytes: int
    gpus: int


def read_sinfo(text: str) -> list[Place]:
    """Lines of `sinfo -N` in SINFO_FORMAT."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 5:
            name, node, cpus, megabytes, gres = words
            # gpu:a100:8(S:0-1),shard:a100:32
            gpus = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres)
            sizes = (_leading(cpus), _leading(megabytes) << 20, sum(map(int, gpus)))
            found.append(Place(name.rstrip("*"), name.endswith("*"), node, *sizes))
    return found


def _leading(text: str) -> int:
    """The number that a word begins with, such as 4 of 4+."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def look_up(number: str) -> SlurmJob | None:
    """The job by its number; None if Slurm does not know it. Raises EngineUnseen."""
    try:
        if found := read_scontrol(call("scontrol", "show", "job", "-o", number)):
            return found
    except JobError as error:
        if "Invalid job id" not in str(error):
            raise EngineUnseen(str(error)) from error
    return accounted(number)


def accounted(number: str) -> SlurmJob | None:
    """The job by accounting; None if there is no accounting, or no such job in it."""
    try:
        text = call("sacct", "-X", "-n", "-P", "-j", number, "-o", "JobID,State,ExitCode,NodeList,JobName")
    except (JobError, EngineUnseen):
        return None
    return read_sacct(text)


def read_sacct(text: str) -> SlurmJob | None:
    """Lines of `sacct -P`: JobID, State, ExitCode, NodeList, JobName."""
    rows = [line.split("|", 4) for line in text.splitlines() if line.count("|") >= 4]
    return foremost(
        # "CANCELLED by 1000", and "OUT_OF_ME+" where a column was too narrow.
        SlurmJob(job, _whole_word(state), "", code, 0, None, nodes, name=name)
        for job, state, code, nodes, name in rows
        if state
    )


def _whole_word(state: str) -> str:
    word = state.split()[0]
    return next((name for name in STATES if name.startswith(word[:-1])), word) if word[-1] == "+" else word


def read_scontrol(text: str) -> SlurmJob | None:
    """`scontrol show job -o`, a line for each job; of an array the task that counts (foremost)."""
    return foremost(_read_line(line) for line in text.splitlines() if line.startswith("JobId="))


# What a whole array is, by the state of one of its tasks: those that run say it first.
PRECEDENCE = (RUNNING, SUSPENDED, QUEUED)


def foremost(jobs: Iterable[SlurmJob]) -> SlurmJob | None:
    """The task of an array that runs, else one that waits, else the last to have ended; None of none.

    Slurm lists tasks in an order of its own. The tasks of a het job or of a federation are alike.
    """

    def place(job: SlurmJob) -> tuple[int, int, int]:
        state = STATES.get(job.state)
        rank = PRECEDENCE.index(state) if state in PRECEDENCE else len(PRECEDENCE)
        ended = job.end or 0.0
        return rank, -int(ended), -job.task

    return min(jobs, key=place, default=None)


def _read_line(line: str) -> SlurmJob:
    fields: dict[str, str] = {}
    # Values may hold blanks; a value ends where another NAME= begins. The first one counts: what comes late
    # is paths and comments, which may hold anything.
    for name, value in re.findall(r"(\S+?)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", line):
        fields.setdefault(name, value)
    task = fields.get("ArrayTaskId", "").partition("-")[0].partition(",")[0]
    return SlurmJob(
        number=fields["JobId"].partition(" ")[0],
        state=fields.get("JobState", "").split()[0] if fields.get("JobState") else "",
        reason=fields.get("Reason", ""),
        exit_code=fields.get("ExitCode", ""),
        restarts=int(fields.get("Restarts", "0") or 0),
        start=moment(fields.get("StartTime", "")),
        nodes=fields.get("NodeList", "").replace("(null)", ""),
        end=moment(fields.get("EndTime", "")),
        task=int(task) if task.isdigit() else 0,
        name=fields.get("JobName", ""),
        comment=fields.get("Comment", "").strip(),
    )


def moment(text: str) -> float | None:
    """Seconds since the epoch of Slurm's local time; None for Unknown, None or N/A."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def word_of(found: SlurmJob | None, number: str) -> EngineWord:
    """The engine's word about a job that scontrol has found, or has not."""
    engine = f"Slurm job {number}"
    if found is None:
        return EngineWord(None, "", time.time(), engine=engine)
    state = STATES.get(found.state)
    if state == QUEUED:
        reason = waiting_words(found)
    elif state in (FAILED, CANCELLED):
        code = f", exit code {found.exit_code}" if found.exit_code not in ("", "0:0") else ""
        why = f", {found.reason}" if found.reason not in ("", "None") else ""
        reason = f"{engine} ended as {found.state}{code}{why}"
    else:
        reason = f"{engine} is {found.state} on {found.nodes}" if found.nodes else ""
    starts = found.start if state == QUEUED else None
    return EngineWord(state, reason, time.time(), starts_at=starts, engine=engine)


def waiting_words(found: SlurmJob) -> str:
    """`waits in Slurm (Resources): the nodes that it needs are busy; start estimated at ...`."""
    name = found.reason or "None"
    first = name.split(",")[0]
    limit = next((said for start, said in LIMITS.items() if first.startswith(start)), "")
    words = WAITING.get(first, limit)
    text = f"Slurm job {found.number} waits ({name})" + (f": {words}" if words else "")
    if found.restarts:
        text += f"; put back into the queue {found.restarts} time{'s' if found.restarts > 1 else ''}"
    if found.start is not None and found.start > time.time():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.start))
        text += f"; start estimated at {when}"
    return text
