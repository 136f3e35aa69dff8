"""SlurmBackend with recorded output of Slurm: which allocation continues a job, and what submit rejects."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.jobstate import CANCELLED, LOST, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.node_records import NodeRecord
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends import remote_backend
from nbtrain.jobs.backends.remote import NodeWatch
from nbtrain.jobs.backends.remote_backend import EngineUnseen
from nbtrain.jobs.backends.slurm import backend as backend_module
from nbtrain.jobs.backends.slurm import engine
from nbtrain.jobs.backends.slurm.backend import BACKEND, SlurmHandle, SlurmLauncher
from nbtrain.jobs.control import control
from nbtrain.jobs.supervisor import supervise
from tests.jobs.conftest import TINY

SINFO = "main*|n0|8|16000|gpu:2\nmain*|n1|8|16000|gpu:2\nmain*|n2|64|512000|gpu:8\nlarge|n2|64|512000|gpu:8\n"


@pytest.fixture
def job(workspace: Path) -> JobDir:
    job = RunDir.named("tiny").job("20260101-120000-abcd")
    job.make_folders()
    SlurmHandle(["12"]).write(job.handle_json)
    return job


@pytest.fixture
def config(workspace: Path) -> Callable[..., RunConfig]:
    (workspace / "tiny.yaml").write_text(TINY)
    return lambda **more: load(workspace / "tiny.yaml", {"backend.kind": "slurm", **more}, check=False)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A fake Slurm, {program: output or exception}. `said` contains all calls, and `environment` the last
    call's variables.
    """
    answers: dict[str, Any] = {"said": []}

    def call(*arguments: str, folder: Path | None = None, environment: Any = None) -> str:
        answers["said"].append(arguments)
        answers["environment"] = environment
        answer = answers[arguments[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    for module in (backend_module, engine):
        monkeypatch.setattr(module, "call", call)
    return answers


@pytest.mark.parametrize(
    ("restarts", "before", "words"),
    [("1", None, "Slurm job 12 was put back into the queue"), ("1", "1", ""), ("0", None, "")],
)
def test_a_restart_that_slurm_has_counted_is_to_come(
    job: JobDir,
    slurm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    restarts: str,
    before: str | None,
    words: str,
) -> None:
    """While a job is COMPLETING, its number of restarts distinguishes a requeue from scancel, because Slurm
    sends TERM in both cases.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if before:
        monkeypatch.setenv("SLURM_RESTART_COUNT", before)
    slurm["scontrol"] = f"JobId=12 JobName=a JobState=COMPLETING Reason=None Restarts={restarts} NodeList=n0"
    assert BACKEND.starts_again(job) == words
    slurm["scontrol"] = EngineUnseen("Unable to contact slurm controller")
    assert BACKEND.starts_again(job) == ""


def test_the_next_allocation_is_asked_for_or_queued_already(
    job: JobDir, slurm: dict[str, Any], config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resubmissions are made one at a time, up to the limit. For an array, the next task is already
    queued.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    slurm["sbatch"] = "13;east\n"
    twice = config(**{"backend.slurm.resubmissions": 1})
    assert BACKEND.go_on(job, twice) == "continues in Slurm job 13"
    assert "#SBATCH --dependency=afterany:12\n" in (job.path / "slurm.1.sbatch").read_text()
    assert SlurmHandle.read(job.handle_json) == SlurmHandle(["12", "13"], "east")
    assert BACKEND.go_on(job, twice) == ""
    slurm["sbatch"] = EngineUnseen("Unable to contact slurm controller")
    assert BACKEND.go_on(job, config(**{"backend.slurm.resubmissions": 9})) == ""
    slurm.update(sbatch="Welcome to the cluster\n", squeue="")
    assert BACKEND.go_on(job, config(**{"backend.slurm.resubmissions": 9})) == ""
    array = config(**{"backend.slurm.array": "1-3%1"})
    for task, words in (("2", "continues in task 3 of the array"), ("3", "")):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "3")
        assert BACKEND.go_on(job, array) == words


def test_the_next_allocation_counts_its_own_restarts(
    job: JobDir, slurm: dict[str, Any], config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resubmission does not pass SLURM_RESTART_COUNT on to the next job, because an old 1 would hide its
    first restart.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    slurm["sbatch"] = "13\n"
    settings = {"backend.slurm.resubmissions": 1, "backend.slurm.partition": "main"}
    assert BACKEND.go_on(job, config(**settings)) == "continues in Slurm job 13"
    inherited = {name for name in slurm["environment"] if name.startswith(("SLURM_", "SBATCH_"))}
    assert inherited <= {"SLURM_CONF"} and "PATH" in slurm["environment"]


PREEMPTED = "JobId=12 JobName=a JobState=COMPLETING Reason=None Restarts=0 PreemptTime=2026-11-29T08:00:56"
REQUEUED = "JobId=12 JobName=a JobState=COMPLETING Reason=None Restarts=1 NodeList=n0"
ENDED_BY = "slurmstepd-n0: error: *** JOB 12 ON n0 CANCELLED AT 2100-01-01T00:00:00{why} ***\n"


@pytest.fixture
def preempted(
    job: JobDir, slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Callable[[], str]]:
    """Return a function that makes Slurm answer, and its batch step log, as after an end for this reason."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    record = JobRecord(job.job_id, "id", "tiny", RUNNING, 1.0, 4, backend="slurm")
    record.write(job.job_json)

    def make(answer: str, why: str | None = None) -> Callable[[], str]:
        slurm.update(scontrol=answer, sbatch="13\n")
        job.supervisor_log.write_text("" if why is None else ENDED_BY.format(why=why))
        return lambda: BACKEND.preempted_since(job, 0.0)

    return make


def test_only_slurms_own_record_is_a_preemption(
    preempted: Callable[..., Callable[[], str]], slurm: dict[str, Any]
) -> None:
    """A preemption is known by PreemptTime, by the state PREEMPTED, or by slurmstepd's line if the job is in
    the queue again. scancel, a requeue by hand and a failed node are none.
    """
    announced = "Slurm preempted job 12 (PreemptTime=2026-11-29T08:00:56)"
    assert preempted(PREEMPTED)() == announced
    assert preempted(PREEMPTED.replace("2026-11-29T08:00:56", "None"))() == ""
    assert preempted(f"{PREEMPTED} SuspendTime=2026-11-29T07:00:00")() == announced
    # PreemptMode=SUSPEND: the job was suspended, and runs again on its nodes.
    assert preempted(f"{PREEMPTED} SuspendTime=2026-11-29T08:00:57")() == ""
    assert preempted(REQUEUED.replace("COMPLETING", "PREEMPTED"))() == "Slurm preempted job 12"
    assert preempted(REQUEUED, " DUE TO PREEMPTION")() == "Slurm preempted job 12"
    for why in ("", " DUE TO JOB REQUEUE", " DUE TO NODE FAILURE", " DUE TO TIME LIMIT", None):
        assert preempted(REQUEUED, why)() == ""
    slurm["scontrol"] = EngineUnseen("Unable to contact slurm controller")
    with pytest.raises(JobError, match="Slurm: Unable to contact slurm controller"):
        preempted(slurm["scontrol"])()


def test_a_preemption_that_cancels_is_submitted_again_up_to_the_limit(
    job: JobDir, preempted: Callable[..., Callable[[], str]], config: Callable[..., RunConfig]
) -> None:
    """A requeue needs no resubmission; PreemptMode=CANCEL needs one each, as does a time limit that comes
    while the job waits; a job cancelled by scancel during its grace time is not submitted again.
    """
    once = config(**{"backend.slurm.resubmissions": 1})
    preempted(REQUEUED, " DUE TO PREEMPTION")
    assert BACKEND.after_preemption(job, once) == "Slurm job 12 was put back into the queue"
    preempted(PREEMPTED, "")
    assert BACKEND.after_preemption(job, once) == ""
    preempted(PREEMPTED, " DUE TO PREEMPTION")
    assert BACKEND.after_preemption(job, config()) == ""
    assert BACKEND.after_preemption(job, once) == "continues in Slurm job 13"
    assert BACKEND.after_preemption(job, once) == ""
    preempted(PREEMPTED, " DUE TO TIME LIMIT")
    twice = config(**{"backend.slurm.resubmissions": 2})
    assert BACKEND.after_preemption(job, twice) == "continues in Slurm job 13"


@pytest.mark.parametrize(
    ("kind", "mode", "requeue", "asked"),
    [
        ("preempt/partition_prio", "REQUEUE", True, True),
        ("preempt/partition_prio", "CANCEL", True, False),
        ("preempt/qos", "REQUEUE", True, False),
        ("preempt/partition_prio", "REQUEUE", False, False),
    ],
)
def test_an_allocation_is_given_back_if_slurm_queues_the_job_again(
    job: JobDir,
    preempted: Callable[..., Callable[[], str]],
    config: Callable[..., RunConfig],
    slurm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    mode: str,
    requeue: bool,
    asked: bool,
) -> None:
    """A preempted job leaves its nodes before the end of the grace time only if Slurm requeues such jobs."""
    monkeypatch.setenv("SLURM_JOB_PARTITION", "low")
    launcher = SlurmLauncher(job, ("rank.py",))
    launcher._config = config(**{"backend.slurm.requeue": requeue})
    preempted(PREEMPTED)
    words = launcher.scheduler_preemption([1])
    assert words.startswith("Slurm preempted job 12")
    assert launcher.preemption() == words, "also when its agents are gone"
    slurm["scontrol"] = f"PreemptType = {kind}\nPartitionName=low PreemptMode={mode} State=UP"
    launcher.give_back()
    assert (("scontrol", "requeue", "12") in slurm["said"]) is asked


def test_a_step_that_scancel_has_ended_is_named(
    job: JobDir, config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If scancel has ended the agents' step, the cause names it; a step that nbtrain has ended itself, before
    or now, is not called so.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(backend_module.processes, "start", lambda *arguments, **named: None)
    line = "srun: error: *** STEP 12.{} ON n0 CANCELLED AT 2100-01-01T00:00:00 ***\n"

    def ends() -> str:
        launcher = SlurmLauncher(job, ("rank.py",))
        launcher.start_agents(config())
        with job.node_log(0).open("a") as log:
            log.write(added)
        launcher._end_agents("node n0 did not respond")
        return launcher.end_message

    job.node_log(0).write_text(line.format(0))
    added = ""
    assert ends() == "node n0 did not respond"
    added = line.format(1)
    assert ends() == "scancel ended step 12.1: node n0 did not respond"
    job.supervisor_log.write_text(ENDED_BY.format(why=""))
    added = line.format(2)
    assert ends() == "node n0 did not respond", "scancel of the whole job"


def test_agents_that_an_attempt_starts_again_are_not_waited_for(
    job: JobDir, config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a notice the job waits for agents that are silent, but not once their step has ended, nor once
    Slurm has kept a silent step for longer than it keeps a lost node.
    """
    launcher = SlurmLauncher(job, ("rank.py",))
    launcher._config = config(**{"resources.nodes": 2, "backend.node_timeout_seconds": 20})
    ended: list[int] = []
    step = SimpleNamespace(poll=lambda: ended[0] if ended else None)
    launcher._agents = step
    assert launcher.missing() == "nodes 0, 1"
    ended.append(1)
    assert launcher.missing() == ""
    ended.clear()
    agent = ProcessIdentity.of(os.getpid())
    record = NodeRecord(0, "n0", agent, time.time(), "10.0.0.1", 1, 0, 0)
    launcher._watches = {0: NodeWatch(record, time.monotonic() - 300, 0.0)}
    assert launcher.missing() == "nodes 0, 1"
    launcher._watches[0].heard_at -= backend_module.SILENT_STEP_SECONDS
    assert launcher.missing() == ""


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("ReqNodeNotAvail,_UnavailableNodes:n1", True),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", True),
        ("Priority", False),
    ],
)
def test_a_drained_node_is_named_with_its_reason(
    job: JobDir, slurm: dict[str, Any], reason: str, named: bool
) -> None:
    """A job that waits for nodes that are drained or down says which, and why; a job that waits for others
    does not ask.
    """
    JobRecord(job.job_id, "id", "tiny", QUEUED, 1.0, 4, backend="slurm").write(job.job_json)
    slurm["scontrol"] = (
        f"JobId=12 JobName=nbtrain-tiny JobState=PENDING Reason={reason} Restarts=0 Partition=gpu NodeList="
    )
    slurm["sinfo"] = "n0|idle|none\nn1|drained|disk | smart\nn2|down*|Not responding\n"
    _, cause = BACKEND.status(job)
    said = "; n1 is drained (disk | smart), n2 is down (Not responding)"
    assert (cause or "").endswith(said) is named
    assert any(call[0] == "sinfo" for call in slurm["said"]) is named


def test_a_job_whose_batch_step_was_killed_is_waited_for_until_it_is_lost(
    job: JobDir, slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it counts as LOST, a job that Slurm has ended says so; a resume waits for that instead of
    joining it. A job that runs is not waited for.
    """
    record = JobRecord(job.job_id, "id", "tiny", RUNNING, 1.0, 4, backend="slurm")
    record.supervisor = ProcessIdentity(1, 1, "boot", "n0")
    record.write(job.job_json)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        os.utime(job.job_json, (time.time() - 31,) * 2)

    monkeypatch.setattr(remote_backend.time, "sleep", sleep)
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 0.0)
    slurm["scontrol"] = "JobId=12 JobName=nbtrain-tiny JobState=RUNNING Reason=None Restarts=0 NodeList=n0"
    BACKEND.settle(job)
    assert (BACKEND.status(job)[0], waits) == (RUNNING, [])
    slurm["scontrol"] = (
        "JobId=12 JobName=nbtrain-tiny JobState=FAILED Reason=None ExitCode=0:9 Restarts=0 NodeList=n0"
    )
    os.utime(job.job_json, (time.time() - 4,) * 2)
    state, cause = BACKEND.status(job)
    assert state == RUNNING and (cause or "").startswith("Slurm job 12 ended as FAILED"), (state, cause)
    assert (cause or "").endswith("s, and the job counts as LOST after 30 s")
    BACKEND.settle(job)
    assert (BACKEND.status(job)[0], waits) == (LOST, [1.0])


PAUSED = "paused on request at step 8; saved; `nbtrain resume tiny` continues it"
ENDED = "JobId=12 JobName=nbtrain-tiny JobState=COMPLETED Reason=None Restarts=0 NodeList=n0"


@pytest.fixture
def at_rest(job: JobDir, config: Callable[..., RunConfig]) -> Callable[..., JobDir]:
    """Create a paused job whose allocation has ended."""

    def make(**more: Any) -> JobDir:
        job.run.config_yaml.write_text(to_yaml(config(**more)))
        JobRecord(job.job_id, "id", "tiny", SUSPENDED, 1.0, 4, cause=PAUSED, backend="slurm").write(
            job.job_json
        )
        return job

    return make


def test_a_paused_job_is_submitted_again_once(at_rest: Callable[..., JobDir], slurm: dict[str, Any]) -> None:
    """Resuming a paused job submits it once, which does not count as a resubmission; if Slurm rejects it, the
    job stays paused.
    """
    job = at_rest(**{"backend.slurm.resubmissions": 1})
    assert BACKEND.status(job) == (SUSPENDED, PAUSED)
    assert slurm["said"] == []
    slurm.update(scontrol=ENDED, squeue="", sbatch=EngineUnseen("Unable to contact slurm controller"))
    with pytest.raises(
        JobError, match=r"could not resume job .*: Unable to contact slurm controller\. The job stays paused"
    ):
        BACKEND.unpause(job)
    assert BACKEND.status(job) == (SUSPENDED, PAUSED)
    slurm["sbatch"] = "13\n"
    for _ in range(2):
        BACKEND.unpause(job)
    record, handle = JobRecord.read(job.job_json), SlurmHandle.read(job.handle_json)
    assert record is not None and (record.state, record.cause) == (QUEUED, "resumed after a pause")
    assert handle is not None and (handle.numbers, handle.resumed) == (["12", "13"], 1)
    slurm["sbatch"] = "14\n"
    assert BACKEND.go_on(job, load_resolved(job.run.config_yaml)) == "continues in Slurm job 14"


def test_tasks_of_a_paused_array_do_not_run_beside_the_new_ones(
    at_rest: Callable[..., JobDir], slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause, a task of the old array that still starts ends immediately, and the remaining tasks are
    removed from the queue.
    """
    job = at_rest(**{"backend.slurm.array": "1-3%1"})
    # The signals and orphans of this process are not the job's.
    monkeypatch.setattr(supervise.SignalRequests, "listen", lambda requests, in_allocation: requests)
    monkeypatch.setattr(supervise.processes, "adopt_orphans", lambda: None)
    assert supervise.main(str(job.run.path), job.job_id, foreground=True) == 0
    assert BACKEND.status(job) == (SUSPENDED, PAUSED)
    slurm.update(scontrol=ENDED.replace("COMPLETED", "PENDING"), sbatch="13\n", scancel="")
    BACKEND.unpause(job)
    assert ("scancel", "12") in slurm["said"]


def test_a_paused_job_is_cancelled_without_slurm(
    at_rest: Callable[..., JobDir], slurm: dict[str, Any]
) -> None:
    """Cancelling a paused job needs no Slurm: its end and a summary are written."""
    job = at_rest()
    assert BACKEND.cancel(job, now=False)
    ended = (CANCELLED, "stopped on request while the job was paused (paused on request at step 8; saved)")
    assert BACKEND.status(job) == ended
    assert files.read_json(job.run.summary_json)["state"] == CANCELLED
    assert slurm["said"] == []


def test_a_job_that_waits_again_is_not_said_to_save(
    at_rest: Callable[..., JobDir], slurm: dict[str, Any]
) -> None:
    """If a job was requeued in the meantime, cancelling it does not claim that it saves."""
    job = at_rest()
    JobRecord(job.job_id, "id", "tiny", QUEUED, 1.0, 4, backend="slurm").write(job.job_json)
    slurm.update(scontrol=ENDED.replace("COMPLETED", "PENDING"), scancel="")
    with pytest.raises(JobError) as refused:
        control.cancel(job, wait_seconds=0.0)
    assert str(refused.value).endswith(
        "s after the stop request; none of its ranks is running, so nothing needs to be saved. It ends when "
        "its scheduler starts it again; to end it now, run `nbtrain cancel tiny` again."
    )


def test_a_job_that_is_resumed_while_it_goes_to_rest_is_submitted_again(
    at_rest: Callable[..., JobDir], slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a job is resumed when its supervisor has already read the pause, it is submitted again as soon as
    the supervisor has exited.
    """
    job = at_rest()
    rests = JobRecord.read(job.job_json)
    assert rests is not None
    here = ProcessIdentity.of(os.getpid())
    replace(rests, state=RUNNING, supervisor=here).write(job.job_json)
    slurm.update(scontrol=ENDED.replace("COMPLETED", "RUNNING"), squeue="", sbatch="13\n", scancel="")
    sleep = control.time.sleep

    def leave(seconds: float) -> None:
        monkeypatch.setattr(control.time, "sleep", sleep)
        rests.write(job.job_json)

    monkeypatch.setattr(control.time, "sleep", leave)
    monkeypatch.setattr(control, "LEAVING_SECONDS", 600.0)
    control.ask_pause(job, True)
    control.unpause(job)
    record = JobRecord.read(job.job_json)
    assert record is not None and (record.state, record.cause) == (QUEUED, "resumed after a pause")
    assert not control.asked_pause(job)
    # A supervisor that reads the resume in time continues at once.
    replace(rests, state=RUNNING, supervisor=here).write(job.job_json)
    monkeypatch.setattr(control, "LEAVING_SECONDS", 0.0)
    control.unpause(job)
    assert len([call for call in slurm["said"] if call[0] == "sbatch"]) == 1


@pytest.mark.parametrize(("reason", "released"), [("JobHeldUser", True), ("Priority", False)])
def test_a_job_that_waits_is_held_and_released(
    at_rest: Callable[..., JobDir], slurm: dict[str, Any], reason: str, released: bool
) -> None:
    """Pausing a waiting job holds it in Slurm's queue, and resuming releases it; a suspended job cannot be
    held.
    """
    job = at_rest()
    JobRecord(job.job_id, "id", "tiny", QUEUED, 1.0, 4, backend="slurm").write(job.job_json)
    slurm["scontrol"] = ENDED.replace("COMPLETED", "PENDING").replace("Reason=None", f"Reason={reason}")
    BACKEND.pause(job)
    assert ("scontrol", "uhold", "12") in slurm["said"]
    BACKEND.unpause(job)
    assert (("scontrol", "release", "12") in slurm["said"]) == released
    slurm["scontrol"] = JobError("scontrol: Job is no longer pending execution for job 12")
    with pytest.raises(
        JobError, match=r"for job 12\. The job pauses as soon as its ranks run; if Slurm has suspended"
    ):
        BACKEND.pause(job)


def test_an_elastic_job_counts_the_nodes_that_are_left(
    job: JobDir, slurm: dict[str, Any], config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --no-kill, an elastic job counts the nodes that are still part of its allocation."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    launcher = SlurmLauncher(job, [])
    run = config(**{"resources.nodes": 2, "parallel.data_parallel_size": 4})
    for nodes, devices in (("2", [2, 2]), ("1", [2, 0])):
        slurm["scontrol"] = f"{ENDED.replace('COMPLETED', 'RUNNING')} NumNodes={nodes} NumCPUs=2"
        assert launcher.devices(run) == devices
    slurm["scontrol"] = EngineUnseen("Unable to contact slurm controller")
    assert launcher.devices(run) is None


def test_slurm_forgets_and_the_run_directory_does_not(job: JobDir, slurm: dict[str, Any]) -> None:
    """If Slurm no longer knows a job, its recorded end is kept; without a record, its state is unknown."""
    unknown = JobError("scontrol: slurm_load_jobs error: Invalid job id specified")
    slurm["sacct"] = JobError("sacct: Slurm accounting storage is disabled")
    slurm["scontrol"] = (
        "JobId=12 JobName=nbtrain-tiny JobState=CANCELLED Reason=None Restarts=0 ExitCode=0:15 NodeList="
    )
    assert BACKEND.engine_word(job).state == CANCELLED
    slurm["scontrol"] = unknown
    word = BACKEND.engine_word(job, at_once=True)
    assert (word.state, word.seen) == (CANCELLED, True)
    SlurmHandle(["12", "13"]).write(job.handle_json)
    word = BACKEND.engine_word(job, at_once=True)
    assert (word.state, word.seen, word.engine) == (None, True, "Slurm job 13")
    slurm["scontrol"] = EngineUnseen("Unable to contact slurm controller")
    word = BACKEND.engine_word(job, at_once=True)
    assert (word.state, word.seen, word.trouble) == (None, False, "Unable to contact slurm controller")
    slurm["scontrol"], slurm["sacct"] = unknown, "13|COMPLETED|0:0|n0|nbtrain-tiny\n"
    assert BACKEND.engine_word(job, at_once=True).state == SUCCEEDED


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ("JobName=nbtrain-tiny", True),
        ("JobName=x Comment=nbtrain/tiny/20260101-120000-abcd ", True),
        ("JobName=nbtrain-tiny Comment=nbtrain/tiny/20260102-120000-abcd ", False),
        ("JobName=nbtrain-other", False),
    ],
)
def test_another_job_with_the_same_number_is_left_alone(
    job: JobDir, slurm: dict[str, Any], fields: str, own: bool
) -> None:
    """If the controller has lost its state and given the same number to another job, that job is left
    alone.
    """
    slurm["scontrol"] = f"JobId=12 {fields} JobState=RUNNING Reason=None Restarts=0 NodeList=n0"
    slurm["scancel"] = ""
    assert BACKEND.engine_word(job).state == (RUNNING if own else None)
    BACKEND.end_in_engine(job)
    assert (("scancel", "12") in slurm["said"]) == own


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"resources.nodes": 3}, ""),
        ({"resources.nodes": 4}, "requests 4 nodes, but partition main has only 3 nodes."),
        (
            {"resources.nodes": 2, "resources.cpus_per_node": 32},
            "requests 2 nodes with 32 cores each, but only 1 of the 3 nodes in partition main has these ",
        ),
        (
            {"resources.nodes": 2, "backend.slurm.partition": "large"},
            "requests 2 nodes, but partition large has only 1 node.",
        ),
        (
            {"resources.nodes": 2, "resources.device": "gpu", "resources.gpus_per_node": 4},
            "requests 2 nodes with 4 GPUs each, but only 1 of the 3 nodes in partition main has these ",
        ),
        (
            {"resources.memory_per_node_bytes": 600 * 2**30},
            "requests 1 node with 600.0 GiB of memory each, but no node in partition main has these ",
        ),
        ({"backend.slurm.partition": "main,huge"}, "Slurm has no partition huge; it has large, main."),
    ],
)
def test_what_can_never_start_is_refused_at_submit(
    slurm: dict[str, Any], config: Callable[..., RunConfig], settings: dict[str, Any], words: str
) -> None:
    """A request that can never start is rejected at submission; nodes that are down or busy count as
    available.
    """
    slurm["sinfo"] = SINFO
    found = [str(finding) for finding in BACKEND.findings(config(**settings))]
    assert (words in found[0]) if words else found == []


def test_one_machine_is_no_way_out_for_several_nodes(
    slurm: dict[str, Any], config: Callable[..., RunConfig]
) -> None:
    """If Slurm does not answer, backend local is named only for a run of one node, which it can start."""
    slurm["sinfo"] = JobError("sinfo is not installed on this machine")
    for nodes, is_named in ((1, True), (2, False)):
        run = config(**{"resources.nodes": nodes, "parallel.data_parallel_size": nodes})
        (found,) = BACKEND.findings(run)
        assert ("backend.kind=local" in found.fix) is is_named


def test_partitions_are_hidden_or_none_is_the_default(
    slurm: dict[str, Any], config: Callable[..., RunConfig]
) -> None:
    """Hidden partitions are found with `sinfo -a`; if there is no default partition, one must be
    configured.
    """
    slurm["sinfo"] = SINFO.replace("*", "")
    run = config()
    (found,) = BACKEND.findings(run)
    assert slurm["said"] == [("sinfo", "-a", "-h", "-N", "-o", "%P|%N|%c|%m|%G")]
    assert str(found) == (
        f"{run.where('backend.kind')}: backend.slurm.partition is not set, but the cluster has no default "
        "partition. Set backend.slurm.partition to one of large, main."
    )
    assert list(BACKEND.findings(config(**{"backend.slurm.partition": "main"}))) == []


def test_one_allocation_of_a_script_has_the_job(
    job: JobDir, slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the allocation whose number is in the job's handle may run the job; if there is no handle, the
    next allocation that starts may.
    """
    slurm["scontrol"] = "#!/bin/bash\n"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    assert BACKEND.taken_elsewhere(job, "id") == "Slurm job 12 runs it"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    assert BACKEND.taken_elsewhere(job, "id") == ""
    job.handle_json.unlink()
    assert BACKEND.taken_elsewhere(job, "id") == ""
    assert SlurmHandle.read(job.handle_json) == SlurmHandle(["12"])
    assert slurm["said"] == [("scontrol", "write", "batch_script", "12", "-")]
    assert (job.path / "slurm.0.sbatch").read_text() == "#!/bin/bash\n"
