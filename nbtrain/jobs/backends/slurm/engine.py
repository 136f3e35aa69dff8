"""Call Slurm's commands with a time limit, and parse their output leniently.

`scontrol show job -o` is used because it works without accounting in every version since 22.05. The
controller forgets a job MinJobAge after its end, and when it loses its state; then `sacct` is queried, if the
cluster has accounting. JSON output is not used, because scontrol 22.05 does not have it and its fields depend
on the version (job_state is a string before 23.11 and a list since). states.py explains the states.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, QUEUED, RUNNING, SUSPENDED
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.text import amounts
from nbtrain.config.sections.backend_section import without_slurm_conf
from nbtrain.jobs.backends.remote_backend import EngineAway, EngineUnseen
from nbtrain.jobs.backends.slurm.states import STATES, reason_words
from nbtrain.jobs.machine.processes import signal_name

COMMAND_SECONDS = 30.0
# Maximum number of calls of a read-only command, which is called again if a signal ends it.
READ_TRIES = 3
# Output of sbatch. It prints the first form with --parsable, but a site's wrapper may drop that option.
SUBMITTED = re.compile(
    r"(?P<number>\d+)(?:;(?P<cluster>\S+))?|Submitted batch job (?P<named>\d+)(?: on cluster (?P<on>\S+))?"
)
NO_ESTIMATE_SECONDS = 360 * 86_400.0
# Variables that fix the format of times, and English as the language of messages.
COMMAND_VARIABLES = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


@dataclass(frozen=True)
class SlurmJob:
    """A job as reported by scontrol or sacct."""

    number: str
    state: str
    """Slurm's name of the job's state."""
    reason: str
    exit_code: str
    restarts: int
    start: float | None
    nodes: str
    end: float | None = None
    task: int = 0
    """Index of the task in a job array."""
    name: str = ""
    comment: str = ""
    node_count: int = 0
    preempt_time: str = ""
    """Time of the job's preemption in Slurm's format; "" if the job was not preempted.

    It is also "" if the preemption only suspended the job, which then keeps its nodes. A requeue deletes the
    time.
    """
    partition: str = ""
    error_path: str = ""
    """Path of the batch step's standard error."""


def call(*arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a Slurm command in `folder` and return its output.

    By default, the command has this process's environment. A command that only reads is called again if a
    signal ends it: Slurm signals every process of a job, including the command that queries the reason.

    Raises EngineUnseen if Slurm does not respond, EngineAway if Slurm is not installed or not configured on
    this machine, and JobError if Slurm rejects the command.
    """
    program = shutil.which(arguments[0])
    if program is None:
        raise EngineAway(f"{arguments[0]} is not installed on this machine")
    variables = {**(os.environ if environment is None else environment), **COMMAND_VARIABLES}
    for _ in range(READ_TRIES if _only_reads(arguments) else 1):
        try:
            answer = subprocess.run(
                [program, *arguments[1:]],
                cwd=folder,
                capture_output=True,
                # Jobs' comments may contain any bytes.
                encoding="utf-8",
                errors="replace",
                timeout=COMMAND_SECONDS,
                env=variables,
            )
        except subprocess.TimeoutExpired:
            raise EngineUnseen(f"{arguments[0]} did not respond within {COMMAND_SECONDS:g} s") from None
        if answer.returncode >= 0:
            break
    if answer.returncode < 0:
        raise EngineUnseen(f"{arguments[0]} was ended by {signal_name(-answer.returncode)}")
    if answer.returncode == 0:
        return answer.stdout
    said = " ".join((answer.stderr or answer.stdout).split())
    if away := without_slurm_conf(arguments[0], said):
        raise EngineAway(away)
    if re.search(r"Unable to contact slurm|Connection (refused|timed out)|Socket timed out|Zero Bytes", said):
        raise EngineUnseen(said)
    said = said.removeprefix(f"{arguments[0]}: ")
    raise JobError(f"{arguments[0]}: {said or f'exit code {answer.returncode}'}")


def _only_reads(arguments: tuple[str, ...]) -> bool:
    """Return whether a command changes nothing, so that it may be called again."""
    return arguments[0] in ("squeue", "sinfo", "sacct") or arguments[:2] == ("scontrol", "show")


SINFO_FORMAT = "%P|%N|%c|%m|%G"


@dataclass(frozen=True)
class PartitionNode:
    """A node in a partition, with its resources if it is up."""

    name: str
    """Name of the partition."""
    default: bool
    """Whether this is the default partition, for jobs that do not name a partition."""
    node: str
    cpus: int
    memory_bytes: int
    gpus: int


def read_sinfo(text: str) -> list[PartitionNode]:
    """Return the nodes in the output of `sinfo -N` in SINFO_FORMAT."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 5:
            name, node, cpus, megabytes, gres = words
            # gpu:a100:8(S:0-1),shard:a100:32
            gpus = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres)
            sizes = (_leading(cpus), _leading(megabytes) << 20, sum(map(int, gpus)))
            found.append(PartitionNode(name.rstrip("*"), name.endswith("*"), node, *sizes))
    return found


def _leading(text: str) -> int:
    """Return the number at the start of a word, such as 4 for "4+"; 0 if it does not start with a number."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def look_up(number: str) -> SlurmJob | None:
    """Return the job with this number; None if Slurm does not know it. Raises EngineUnseen."""
    try:
        if found := read_scontrol(call("scontrol", "show", "job", "-o", number)):
            return found
    except JobError as error:
        if "Invalid job id" not in str(error):
            raise EngineUnseen(str(error)) from error
    return accounted(number)


def numbered(name: str, comment: str, known: list[str]) -> str | None:
    """Return the newest number of a job with this name and comment; None if there is no such job.

    The numbers in `known` are ignored. Raises EngineUnseen.
    """
    try:
        # %F is the id of the whole array; the comment may contain anything.
        text = call("squeue", "-h", "--states=all", f"--name={name}", "-o", "%F|%k")
    except JobError as error:
        raise EngineUnseen(str(error)) from error
    rows = [line.strip().partition("|") for line in text.splitlines()]
    found = {number for number, _, said in rows if said.partition(",")[0] == comment} - set(known)
    return max((number for number in found if number.isdigit()), key=int, default=None)


# Reasons that mean that a job waits for drained or lost nodes, which Slurm does not name or explain.
NODE_REASONS = ("ReqNodeNotAvail", "NodeNotAvail", "NodeDown", "Nodes_required_for_job_are_DOWN")
NODES_FORMAT = "%N|%T|%E"
# Largest number of nodes that a message names; a large cluster may have hundreds of such nodes.
MOST_NODES = 4


def unavailable_nodes(partition: str) -> str:
    """Return text about the drained and lost nodes of a partition, such as "n1 is drained (disk)".

    The reason in parentheses is the administrator's. Returns "" if there are no such nodes. Raises
    EngineUnseen and JobError.
    """
    request = ["-p", partition] if partition else []
    found = {}
    for line in call("sinfo", "-h", "-N", *request, "-o", NODES_FORMAT).splitlines():
        words = line.strip().split("|", 2)
        if len(words) == 3 and re.match(r"drain|down|fail", words[1]):
            node, state, reason = words
            why = "" if reason in ("", "none", "(null)") else f" ({reason})"
            found[node] = f"{node} is {state.rstrip('*')}{why}"
    named = ", ".join([*found.values()][:MOST_NODES])
    if not (more := max(0, len(found) - MOST_NODES)):
        return named
    return f"{named}, and {amounts.counted(more, 'more node')} {'are' if more > 1 else 'is'} unavailable"


def requeues_preempted(partition: str) -> bool:
    """Return whether Slurm requeues the preempted jobs of a partition.

    Returns False if their quality of service decides about that. Raises EngineUnseen and JobError.
    """
    if "preempt/partition_prio" not in call("scontrol", "show", "config"):
        return False
    return "PreemptMode=REQUEUE" in call("scontrol", "show", "partition", "-o", partition)


def submitted_number(output: str) -> tuple[str, str]:
    """Return the job's (number, cluster) from the output of sbatch; ("", "") if there is no number.

    Other lines are ignored, because a site may have wrapped sbatch in a script that prints them.
    """
    for line in reversed(output.splitlines()):
        if found := SUBMITTED.fullmatch(line.strip()):
            return found["number"] or found["named"], found["cluster"] or found["on"] or ""
    return "", ""


def accounted(number: str) -> SlurmJob | None:
    """Return the job from accounting; None if accounting is off or does not know the job."""
    try:
        text = call("sacct", "-X", "-n", "-P", "-j", number, "-o", "JobID,State,ExitCode,NodeList,JobName")
    except (JobError, EngineUnseen):
        return None
    return read_sacct(text)


def read_sacct(text: str) -> SlurmJob | None:
    """Return the job in the output of `sacct -P`, with JobID, State, ExitCode, NodeList, JobName.

    Returns None if the output contains no job.
    """
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
    """Return the job in the output of `scontrol show job -o`; None if there is no job.

    The output has one line per job. For an array, the task that counts is returned; see foremost().
    """
    return foremost(_read_line(line) for line in text.splitlines() if line.startswith("JobId="))


# Order in which the states of an array's tasks determine the state of the array.
PRECEDENCE = (RUNNING, SUSPENDED, QUEUED)


def foremost(jobs: Iterable[SlurmJob]) -> SlurmJob | None:
    """Return an array's running task, or else a waiting task, or else the last task to end.

    Slurm lists tasks in no useful order. The parts of a heterogeneous job or of a federation are ranked in
    the same way. Returns None without tasks.
    """

    def place(job: SlurmJob) -> tuple[int, int, int]:
        state, _ = STATES.get(job.state, (None, ""))
        rank = PRECEDENCE.index(state) if state in PRECEDENCE else len(PRECEDENCE)
        ended = job.end or 0.0
        return rank, -int(ended), -job.task

    return min(jobs, key=place, default=None)


def _read_line(line: str) -> SlurmJob:
    fields: dict[str, str] = {}
    # Values may contain spaces; a value ends where another NAME= begins. If a name occurs twice, the first
    # value counts, because later fields are paths and comments, which may contain anything.
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
        node_count=_leading(fields.get("NumNodes", "")),
        preempt_time=_preempt_time(fields),
        partition=fields.get("Partition", ""),
        error_path=fields.get("StdErr", ""),
    )


def _preempt_time(fields: Mapping[str, str]) -> str:
    """Return the time at which Slurm took the job's nodes away; "" if it did not.

    With PreemptMode=SUSPEND, the job is only suspended and keeps its nodes. Slurm then sets PreemptTime too,
    and does not clear it when the job runs again.
    """
    text = fields.get("PreemptTime", "")
    preempted, suspended = moment(text), moment(fields.get("SuspendTime", ""))
    kept = preempted is None or (suspended is not None and suspended >= preempted)
    return "" if kept else text


# Line that slurmstepd writes to the log of a signalled batch step or step (slurmd/slurmstepd/req.c).
STEPD_LINE = re.compile(
    r"\*\*\* (?:JOB|STEP) (?P<number>\d+)(?:\.(?P<step>\d+))? ON \S+ CANCELLED AT (?P<time>\S+)"
    r"(?: DUE TO (?P<why>[A-Z ]+?))? \*\*\*"
)
LOG_BYTES = 1 << 20


def cancelled_for(log: Path, number: str, since: float) -> str | None:
    """Return why Slurm ended the batch step, such as PREEMPTION, TIME LIMIT or JOB REQUEUE.

    The reason is in slurmstepd's newest line in the log. It is "" for scancel, and None without a line after
    `since`, a time by the batch step's own clock. Once a job has been requeued without a grace time, this
    line is the only record of its preemption.
    """
    lines = [line for line in _stepd_lines(log, number, since) if line["step"] is None]
    return (lines[-1]["why"] or "") if lines else None


def cancelled_step(log: Path, number: str, since: float) -> str:
    """Return the number of the newest step that scancel has ended since a time; "" if there is no such step.

    Steps that ended because their job ended do not count.
    """
    lines = _stepd_lines(log, number, since)
    alone = bool(lines) and lines[-1]["step"] is not None and not lines[-1]["why"]
    return lines[-1]["step"] if alone else ""


def _stepd_lines(log: Path, number: str, since: float) -> list[re.Match[str]]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    # Slurm's times are in whole seconds.
    return [
        line
        for line in STEPD_LINE.finditer(text)
        if line["number"] == number and (moment(line["time"]) or 0.0) >= int(since)
    ]


def moment(text: str) -> float | None:
    """Return a local time of Slurm in seconds since the epoch; None for "Unknown", "None" or "N/A"."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def word_of(found: SlurmJob | None, number: str) -> EngineWord:
    """Return the scheduler's report on a job; `found` is None if Slurm does not know the job."""
    engine = f"Slurm job {number}"
    if found is None:
        return EngineWord(None, "", time.time(), engine=engine)
    state, words = STATES.get(found.state, (None, ""))
    words = f" ({words})" if words else ""
    if state == QUEUED:
        reason = waiting_words(found)
    elif state in (FAILED, CANCELLED):
        code = f", exit code {found.exit_code}" if found.exit_code not in ("", "0:0") else ""
        why = f", {found.reason}" if found.reason not in ("", "None") else ""
        reason = f"{engine} ended as {found.state}{words}{code}{why}"
    else:
        reason = f"{engine} is {found.state} on {found.nodes}{words}" if found.nodes else ""
    ended_as = found.state if state == FAILED else ""
    return EngineWord(state, reason, time.time(), engine=engine, ended_as=ended_as)


def waiting_words(found: SlurmJob) -> str:
    """Return why a job waits, such as "Slurm job 12 waits (Resources): the nodes that it needs are busy".

    If Slurm has an estimate, the text ends with "; start estimated at <time>".
    """
    _, words = STATES[found.state]
    # A state such as CONFIGURING is more informative than the reason, which is from before it.
    name = found.state if words else found.reason or "None"
    why = (words or reason_words(name)).replace("{number}", found.number)
    text = f"Slurm job {found.number} waits ({name}): {why}"
    if found.restarts:
        text += f"; requeued {found.restarts} time{'s' if found.restarts > 1 else ''}"
    # Without an estimate, Slurm reports a start in a year.
    if found.start is not None and 0 < found.start - time.time() < NO_ESTIMATE_SECONDS:
        text += f"; start estimated at {amounts.moment(found.start)}"
    return text
