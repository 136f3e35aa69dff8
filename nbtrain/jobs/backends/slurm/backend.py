"""Slurm backend: the supervisor is the batch step on the first node, and srun starts an agent on each node.

    sbatch -> supervisor (batch step) -> srun -> agent of node 0 .. N-1 -> launcher -> ranks

The supervisor restarts ranks inside the allocation. When a node fails, Slurm itself requeues the job
(--requeue), and a job that reaches its time limit submits itself again (resubmissions). A preempted job is
requeued as soon as its ranks have exited, instead of at the end of its grace time (give_back). In all cases,
the same nbtrain job continues from its newest checkpoint.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.jobstate import ACTIVE, QUEUED, SUSPENDED
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.run_directory.observed_state import at_rest
from nbtrain.base.run_directory.records import JobRecord, Record
from nbtrain.base.run_directory.rundir import JobDir, new_run_id
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, folder_variables, workspace
from nbtrain.config.code_file import carried
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.load import load_resolved
from nbtrain.config.load.one_line import RUN_ID, RUN_YAML, one_line
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import CAPABILITIES, Launcher
from nbtrain.jobs.backends.remote import Agents, RemoteLauncher
from nbtrain.jobs.backends.remote_backend import EngineAway, EngineUnseen, RemoteBackend
from nbtrain.jobs.backends.slurm.engine import (
    NODE_REASONS,
    SINFO_FORMAT,
    SlurmJob,
    call,
    cancelled_for,
    cancelled_step,
    look_up,
    numbered,
    read_sinfo,
    requeues_preempted,
    submitted_number,
    unavailable_nodes,
    word_of,
)
from nbtrain.jobs.backends.slurm.script import (
    batch_script,
    comment_of,
    name_of,
    python_of,
    sbatch_environment,
    sbatch_options,
    script_alone,
    shown_script,
)
from nbtrain.jobs.control.control import asked_pause
from nbtrain.jobs.machine import processes
from nbtrain.jobs.supervisor.journal import Journal

SRUN_END_SECONDS = 15.0
# Slurm's reason for a job that `scontrol uhold` keeps waiting.
HELD = "JobHeldUser"
# State of a preempted job in Slurm, and two reasons in slurmstepd's log line.
PREEMPTED, PREEMPTION, TIME_LIMIT = "PREEMPTED", "PREEMPTION", "TIME LIMIT"
# Seconds of silence after which the agent of a running step counts as gone although its node is up. For a
# lost node, Slurm itself ends the allocation after SlurmdTimeout, 300 s by default.
SILENT_STEP_SECONDS = 600.0
# Seconds between two queries about whether nodes that were told to exit are being preempted.
ASK_AGAIN_SECONDS = 2.0


@dataclass
class SlurmHandle(Record):
    """Contents of handle.json: the Slurm job ids of the job's allocations, oldest first."""

    numbers: list[str] = field(default_factory=list)
    cluster: str = ""
    engine: str = "slurm"
    asked: bool = False
    """Whether sbatch was called and its result is not known yet.

    A Slurm job may then exist that is not in `numbers`.
    """
    resumed: int = 0
    """Number of allocations that followed a pause, which do not count as resubmissions."""


def needed_gpus(config: RunConfig) -> int:
    """Return the number of GPUs that the run needs on each node; 0 with device: cpu."""
    return config.resources.gpus_per_node if config.resources.device == "gpu" else 0


def _own(job: JobDir, found: SlurmJob | None) -> SlurmJob | None:
    """Return `found` if it is this job's Slurm job, else None.

    After Slurm has lost its state, it may give the number of this job's Slurm job to another job.
    """
    if found is None:
        return None
    comment, _, _labels = found.comment.partition(",")
    same = comment == comment_of(job) or (not comment and found.name == name_of(job))
    return found if same else None


class SlurmBackend(RemoteBackend):
    """Backend that runs jobs on a Slurm cluster."""

    capabilities = CAPABILITIES["slurm"]

    def submit(self, job: JobDir) -> None:
        """Submit the job with sbatch. Raises SubmitError with Slurm's message."""
        config = load_resolved(job.run.config_yaml)
        try:
            self._sbatch(job, config)
        except (JobError, EngineUnseen) as error:
            raise self.refused(job, f"Slurm did not accept the job: {error}") from error

    def request_text(self, job: JobDir, config: RunConfig, alone: bool = False) -> str:
        """Return the batch script. Raises ConfigError.

        With `alone`, the script's batch step writes the run directory.
        """
        if not alone:
            return shown_script(config, job, folder_variables())
        run_id = job.run.run_id or new_run_id()
        run = {RUN_YAML: one_line(config), RUN_ID: run_id, **carried(config)}
        return script_alone(config, job, {**folder_variables(), **run})

    def was_started(self, job: JobDir, run_id: str) -> None:
        """Write handle.json with this allocation's number, and save Slurm's copy of the script."""
        number = _own_number()
        SlurmHandle([number]).write(job.handle_json)
        with contextlib.suppress(JobError, EngineUnseen):
            files.write_text(
                job.path / "slurm.0.sbatch", call("scontrol", "write", "batch_script", number, "-")
            )

    def taken_elsewhere(self, job: JobDir, run_id: str) -> str:
        """Return text that names the allocation that runs the job, if an earlier sbatch started it.

        Both allocations then come from the same script. Returns "" if this allocation runs the job.
        """
        # The process that writes the job holds the run's lock briefly; after that, the job's supervisor
        # holds it.
        while not job.handle_json.exists():
            with job.run.locked(blocking=False) as taken:
                if taken and not job.handle_json.exists():
                    self.was_started(job, run_id)
            time.sleep(0.1)
        handle = SlurmHandle.read(job.handle_json)
        if handle is None or _own_number() in handle.numbers:
            return ""
        return f"Slurm job {handle.numbers[-1]} runs it"

    def ask_engine(self, job: JobDir) -> EngineWord:
        """Return the report of scontrol on the job, or of sacct if scontrol no longer knows the job."""
        number = self._number(job)
        if number is None:
            return EngineWord(None, "", time.time(), engine="Slurm")
        record = JobRecord.read(job.job_json)
        if record and at_rest(record):
            gone = f"paused; Slurm job {number} has ended"
            return EngineWord(SUSPENDED, gone, time.time(), engine=f"Slurm job {number}")
        try:
            found = _own(job, look_up(number))
        except JobError as error:
            raise EngineUnseen(str(error)) from error
        word = word_of(found, number)
        if word.state == QUEUED and found and found.reason.partition(",")[0] in NODE_REASONS:
            with contextlib.suppress(JobError, EngineUnseen):
                if nodes := unavailable_nodes(found.partition):
                    word = replace(word, reason=f"{word.reason}; {nodes}")
        if word.state == QUEUED and asked_pause(job) and found and found.reason == HELD:
            held = f"paused while waiting: Slurm holds the job; `nbtrain resume {job.run.name}` releases it"
            return replace(word, state=SUSPENDED, reason=held)
        return word

    def end_in_engine(self, job: JobDir) -> None:
        """Run scancel, if the Slurm job with this number is still this job."""
        if (number := self._number(job)) and _own(job, look_up(number)):
            call("scancel", number)

    def pause(self, job: JobDir) -> None:
        """Make Slurm hold a waiting job. A job that has run releases its allocation itself."""
        record, number = JobRecord.read(job.job_json), self._number(job)
        if record is None or number is None or at_rest(record):
            return
        if record.supervisor is not None and record.waiting_preemption is not None:
            # The job was preempted and its allocation has not ended yet, so its supervisor reads the request.
            return
        try:
            # A `uhold` can be released by the user, unlike a `hold` by an administrator.
            call("scontrol", "uhold", number)
        except (JobError, EngineUnseen) as error:
            raise JobError(
                f"{display(job.run.path)}: Slurm job {number} could not be held: {error}. The job pauses as "
                f"soon as its ranks run; if Slurm has suspended it, run `scontrol resume {number}` first."
            ) from error
        self.engine_word(job, at_once=True)

    def unpause(self, job: JobDir) -> None:
        """Release a held job, or submit a paused job again. A job that has not paused yet is left alone."""
        record = JobRecord.read(job.job_json)
        if record is None or record.state not in (QUEUED, SUSPENDED):
            return
        with job.run.locked():
            journal, number = Journal(job), self._number(job)
            try:
                found = _own(job, look_up(number)) if number else None
                if at_rest(journal.record):
                    self._submit_again(journal, found)
                elif found and found.reason == HELD:
                    call("scontrol", "release", found.number)
            except (JobError, EngineUnseen) as error:
                raise JobError(
                    f"{display(job.run.path)}: Slurm could not resume job {job.job_id}: {error}. The job "
                    "stays paused."
                ) from error

    def _submit_again(self, journal: Journal, before: SlurmJob | None) -> None:
        job, cause = journal.job, journal.record.cause
        config = load_resolved(job.run.config_yaml)
        if before and word_of(before, before.number).state in ACTIVE:
            # This cancels array tasks that have not run yet, or a submission whose response was lost.
            call("scancel", before.number)
        journal.set_state(QUEUED, "resumed after a pause")
        try:
            self._sbatch(job, config)
        except (JobError, EngineUnseen):
            journal.set_state(SUSPENDED, cause)
            raise
        handle = SlurmHandle.read(job.handle_json)
        assert handle is not None, "_sbatch() has written it"
        handle.resumed += 1
        handle.write(job.handle_json)

    def findings(self, config: RunConfig) -> Iterator[Finding]:
        """Check that Slurm responds, has the partition, and could start the job if all nodes were idle."""
        try:
            # -a also lists hidden partitions, which users may use; sbatch itself rejects closed partitions.
            there = read_sinfo(call("sinfo", "-a", "-h", "-N", "-o", SINFO_FORMAT))
        except (JobError, EngineUnseen) as error:
            alone = ", or set backend.kind=local" if config.resources.nodes == 1 else ""
            fix = f"Submit from a machine that can reach the cluster{alone}."
            yield shortage(config, "", f"Slurm: {str(error).rstrip('.')}.", fix)
            return
        partition = config.backend.slurm.partition or ""
        known = {place.name for place in there}
        if unknown := [name for name in partition.split(",") if name and name not in known]:
            yield mistake(
                config,
                "backend.slurm.partition",
                f"Slurm has no partition {', '.join(unknown)}; it has {', '.join(sorted(known))}.",
                "Set backend.slurm.partition to one of these.",
            )
            return
        # By default, a cluster accepts jobs that it can never start and lets them wait forever.
        wanted = partition.split(",") if partition else [place.name for place in there if place.default]
        places = [place for place in there if place.name in wanted]
        if not places and not partition:
            yield mistake(
                config,
                "backend.kind",
                "backend.slurm.partition is not set, but the cluster has no default partition.",
                f"Set backend.slurm.partition to one of {', '.join(sorted(known))}.",
            )
            return
        resources, gpus = config.resources, needed_gpus(config)
        fit = {
            place.node
            for place in places
            if place.cpus >= (resources.cpus_per_node or 0)
            and place.memory_bytes >= (resources.memory_per_node_bytes or 0)
            and (config.backend.slurm.gres or place.gpus >= gpus)
        }
        if len(fit) < resources.nodes:
            asked = [amounts.counted(cores, "core")] if (cores := resources.cpus_per_node) else []
            asked += (
                [f"{amounts.size(memory)} of memory"] if (memory := resources.memory_per_node_bytes) else []
            )
            asked += [amounts.counted(gpus, "GPU")] if gpus else []
            each = f" with {', '.join(asked)} each" if asked else ""
            names = sorted({place.name for place in places}) or [partition]
            where = f"partition{'s' if len(names) > 1 else ''} {', '.join(names)}"
            total = amounts.counted(len({place.node for place in places}), "node")
            if not each:
                there_are = f"{where} {'have' if len(names) > 1 else 'has'} only {total}"
            elif fit:
                has = "has" if len(fit) == 1 else "have"
                there_are = f"only {len(fit)} of the {total} in {where} {has} these resources"
            else:
                there_are = f"no node in {where} has these resources"
            yield shortage(
                config,
                "resources.nodes",
                f"the run requests {amounts.counted(resources.nodes, 'node')}{each}, but {there_are}.",
                "Request fewer resources, or choose another partition; to list the nodes, run `sinfo -N -l`.",
            )

    def go_on(self, job: JobDir, config: RunConfig) -> str:
        """Return text that names the job's next allocation; "" if there will be no next allocation.

        It is the next task of the array, or a new Slurm job, which is submitted here and starts when this
        allocation has ended.
        """
        task, last = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_ARRAY_TASK_MAX")
        if config.backend.slurm.array:
            if task and last and int(task) < int(last):
                return f"continues in task {int(task) + 1} of the array"
            return ""
        handle = SlurmHandle.read(job.handle_json) or SlurmHandle()
        if len(handle.numbers) - handle.resumed > config.backend.slurm.resubmissions:
            return ""
        try:
            number = self._sbatch(job, config, after=os.environ.get("SLURM_JOB_ID", ""))
        except (JobError, EngineUnseen) as error:
            print(f"the next allocation could not be submitted: {error}", flush=True)
            return ""
        return f"continues in Slurm job {number}"

    def preempted_since(self, job: JobDir, started_at: float) -> str:
        """Return text about Slurm's preemption of the job since `started_at`; "" if Slurm reports none.

        Slurm reports it as PreemptTime or the state PREEMPTED in scontrol, or in a log line of slurmstepd.
        """
        number = os.environ.get("SLURM_JOB_ID", "")
        try:
            found = look_up(number) if number else None
        except EngineUnseen as error:
            raise JobError(f"Slurm: {error}") from error
        if found is not None and found.preempt_time:
            return f"Slurm preempted job {number} (PreemptTime={found.preempt_time})"
        if (found is not None and found.state == PREEMPTED) or self._end(
            job, found, started_at
        ) == PREEMPTION:
            return f"Slurm preempted job {number}"
        return ""

    def after_preemption(self, job: JobDir, config: RunConfig) -> str:
        """Return text that says how a preempted job continues; "" if it does not.

        The job continues if Slurm requeues it. Otherwise, go_on() requests its next allocation here if Slurm
        cancelled the preempted job, or ended it at its time limit. A preempted job that a user cancels with
        scancel is not submitted again.
        """
        if words := self.starts_again(job):
            return words
        attempts = Journal(job).record.attempts
        with contextlib.suppress(EngineUnseen):
            found = look_up(os.environ.get("SLURM_JOB_ID", ""))
            end = self._end(job, found, attempts[-1].started_at if attempts else 0.0)
            if end in (PREEMPTION, TIME_LIMIT):
                return self.go_on(job, config)
        return ""

    def _end(self, job: JobDir, found: SlurmJob | None, since: float) -> str | None:
        log = Path(found.error_path) if found and found.error_path else job.supervisor_log
        return cancelled_for(log, os.environ.get("SLURM_JOB_ID", ""), since)

    def starts_again(self, job: JobDir) -> str:
        """Return a message if Slurm has requeued the job; "" if it has not.

        Slurm increases the job's restart count right after a lost node or a preemption.
        """
        number, before = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "0")
        try:
            found = look_up(number) if number else None
        except EngineUnseen as error:
            print(f"cannot tell whether Slurm starts the job again: {error}", flush=True)
            return ""
        if found is None or found.restarts <= int(before):
            return ""
        return f"Slurm job {number} was put back into the queue"

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """Return a launcher that starts one agent per node with srun."""
        return SlurmLauncher(job, command)

    def _number(self, job: JobDir) -> str | None:
        """Return the Slurm job number of the newest allocation; None if there is none.

        Raises EngineUnseen if Slurm must be queried but does not respond.
        """
        handle = SlurmHandle.read(job.handle_json)
        if handle is None:
            return None
        if handle.asked and (number := numbered(name_of(job), comment_of(job), handle.numbers)):
            handle.numbers.append(number)
            handle.asked = False
            # A submitting process or a supervisor holds the run's lock, and then writes the number itself.
            with contextlib.suppress(OSError), job.run.locked(blocking=False) as taken:
                if taken:
                    handle.write(job.handle_json)
        return handle.numbers[-1] if handle.numbers else None

    def _sbatch(self, job: JobDir, config: RunConfig, after: str = "") -> str:
        handle = SlurmHandle.read(job.handle_json) or SlurmHandle()
        path = job.path / f"slurm.{len(handle.numbers)}.sbatch"
        files.write_text(path, batch_script(config, job, folder_variables(), after))
        environment = sbatch_environment(os.environ, sbatch_options(config, job, after))
        # This is written first, so that the job can be found even if this process dies before it records the
        # job's number.
        handle.asked = True
        handle.write(job.handle_json)
        try:
            output = call("sbatch", "--parsable", path.name, folder=job.path, environment=environment)
        except (JobError, EngineAway):
            handle.asked = False
            handle.write(job.handle_json)
            raise
        number, cluster = submitted_number(output)
        if not number and not (number := numbered(name_of(job), comment_of(job), handle.numbers) or ""):
            last = (output.strip().splitlines() or ["nothing"])[-1]
            raise JobError(
                f"sbatch printed no job number, and Slurm has no job named {name_of(job)}; sbatch printed: "
                f"{last}"
            )
        handle.numbers.append(number)
        handle.cluster, handle.asked = cluster, False
        handle.write(job.handle_json)
        return number


def _own_number() -> str:
    """Return the number from sbatch for this allocation; for a task of an array, the array's number."""
    return os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID", "")


class SlurmLauncher(RemoteLauncher):
    """Launcher that starts the agents as one step of the allocation."""

    # Slurm's record of a preemption of this allocation, and the time of the last query.
    _preemption = ""
    _asked_at = float("-inf")
    _trouble = ""
    # The newest cancelled step at the time when the agents' step was started.
    _cancelled_before = ""

    def preemption(self, signalled: bool = False) -> str:
        """Return text about a preemption from Slurm or from a machine's notice; "" if there is neither.

        Slurm's record counts until the end of the allocation.
        """
        return self._preemption or super().preemption(signalled)

    def scheduler_preemption(self, leaving: list[int]) -> str:
        """Return text about Slurm's preemption of this allocation; "" if Slurm reports none."""
        if leaving and time.monotonic() - self._asked_at < ASK_AGAIN_SECONDS:
            return ""
        self._asked_at = time.monotonic()
        try:
            self._preemption = BACKEND.preempted_since(self._job, self._attempt_started_at())
            self._trouble = ""
        except JobError as error:
            self._trouble = f"cannot tell whether the job was preempted: {error}"
        return self._preemption

    def poll(self) -> int | None:
        """Return the attempt's exit code; None while it runs.

        If scancel has ended the agents' step, end_message begins by saying so.
        """
        if self._ended is not None:
            return self._ended
        code = super().poll()
        # Before the launch order, launch() or poll() itself may have ended the step.
        if code is not None and self._order is not None and self.end_message:
            self.end_message = f"{self._cancelled_step()}{self.end_message}"
        return code

    def _end_agents(self, why: str) -> None:
        # This is read first, because the end of srun cancels the step too.
        step = self._cancelled_step()
        super()._end_agents(f"{step}{why}")

    def _cancelled_step(self) -> str:
        """Return "scancel ended step JOB.STEP: " if scancel ended the agents' step; "" if it did not.

        The text is put before the message that says how the attempt ended.
        """
        number, since = os.environ.get("SLURM_JOB_ID", ""), self._attempt_started_at()
        step = self._newest_cancelled_step()
        whole_job = cancelled_for(self._job.supervisor_log, number, since) is not None
        if self._preemption or whole_job or step in ("", self._cancelled_before):
            return ""
        return f"scancel ended step {number}.{step}: "

    def _newest_cancelled_step(self) -> str:
        # srun writes slurmstepd's line to the file with its first task's output.
        number = os.environ.get("SLURM_JOB_ID", "")
        return cancelled_step(self._job.node_log(0), number, self._attempt_started_at())

    def _attempt_started_at(self) -> float:
        record = JobRecord.read(self._job.job_json)
        return record.attempts[-1].started_at if record and record.attempts else 0.0

    def give_back(self) -> None:
        """Make Slurm requeue the job now, if Slurm would requeue it anyway at the end of the grace time.

        In all other cases, the job keeps its nodes until Slurm ends the allocation.
        """
        number, partition = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_PARTITION", "")
        if not (self._preemption and self._config.backend.slurm.requeue and number and partition):
            return
        try:
            if requeues_preempted(partition):
                call("scontrol", "requeue", number)
        except (JobError, EngineUnseen) as error:
            words = "the job could not be requeued early and keeps its nodes until Slurm ends it"
            print(f"{words}: {error}", flush=True)

    def missing(self) -> str:
        """Return the nodes whose agents do not report and may still come back; "" if there are none.

        Returns "" too if the next attempt starts new agents: because the agents' step has ended, or because
        an agent has been silent for SILENT_STEP_SECONDS although Slurm still lists the step.
        """
        if self._agents is None or self._agents.poll() is not None:
            return ""
        silent = [time.monotonic() - watch.heard_at for watch in self._watches.values()]
        return "" if max(silent, default=0.0) > SILENT_STEP_SECONDS else super().missing()

    def preemption_trouble(self) -> str:
        """Return why Slurm's record or a machine's notice could not be read; "" if it could."""
        return self._trouble or super().preemption_trouble()

    def devices(self, config: RunConfig) -> list[int] | None:
        """Return the number of devices on each node, which is its number of ranks, or 0 for a lost node.

        This is for allocations that continue without a lost node (--no-kill). Slurm removes such a node from
        the allocation; until then, the silence of its agent shows that it is lost. Returns None if Slurm does
        not report the job.
        """
        number, nodes = os.environ.get("SLURM_JOB_ID"), config.resources.nodes
        try:
            found = look_up(number) if number else None
        except EngineUnseen as error:
            print(f"cannot count the usable nodes: {error}", flush=True)
            return None
        if found is None:
            return None
        heard = sum(not self._lost(node) for node in self._watches) if self._watches else nodes
        left = min(found.node_count, heard, nodes)
        return [config.ranks_per_node] * left + [0] * (nodes - left)

    def start_agents(self, config: RunConfig) -> Agents:
        """Run srun with one task per node; its options keep the other tasks alive when one task ends."""
        section, nodes = config.backend.slurm, config.resources.nodes
        # launch() has ended the previous step, perhaps within the attempt that has just begun.
        self._cancelled_before = self._newest_cancelled_step()
        cores = os.environ.get("SLURM_CPUS_PER_TASK")
        # Slurm interprets % in a path, but below the workspace all names are nbtrain's own.
        logs = os.path.relpath(self._job.logs, workspace())
        command = [
            *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
            *([f"--cpus-per-task={cores}"] if cores else []),
            *("--kill-on-bad-exit=0", "--wait=0", f"--output={logs}/node%t.log"),
            "--open-mode=append",
            *section.srun_options,
            *(python_of(config), "-m", "nbtrain.jobs.node", str(self._job.run.path), self._job.job_id),
            f"--nodes={nodes}",
        ]
        return Step(processes.start(command, self._job.supervisor_log, signal.SIGTERM, cwd=workspace()))


class Step:
    """A running srun process."""

    end_message = ""

    def __init__(self, process: subprocess.Popen):
        self._process = process

    def poll(self) -> int | None:
        """Return srun's exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Send TERM, on which the agents make their ranks save, and later KILL, which ends the step."""
        for number, seconds in ((signal.SIGTERM, SRUN_END_SECONDS), (signal.SIGKILL, 5.0)):
            if self._process.poll() is not None:
                return
            self._process.send_signal(number)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue


BACKEND = SlurmBackend()
