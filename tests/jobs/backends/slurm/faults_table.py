"""Cause each fault in a run with 2 x 2 ranks on a real Slurm cluster, and write
docs/evidence/faults-slurm.md.

    python -m tests.jobs.backends.slurm.faults_table [NAME ...]     run only these faults; keep the other rows

`make soak` runs it as the part `slurm`. Slurm's time limits are in minutes, and a requeued job waits two
minutes, so all faults together take about ten minutes, three at a time.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, LOST, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.node_records import EngineWord, NodeRecord
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.jobs.backends.slurm.engine import read_scontrol
from nbtrain.jobs.control.control import pause
from nbtrain.jobs.machine import processes
from nbtrain.jobs.submission.submit import resume
from tests.clusters.slurm import SlurmCluster, missing
from tests.jobs.backends import fault_tables
from tests.jobs.backends.fault_tables import Fault, Row, Tables, environment, plain_times
from tests.jobs.conftest import FAKE_RANK, trace


class Scene(fault_tables.Scene):
    """A job on a Slurm cluster and the fault that happens to it."""

    def __init__(self, cluster: SlurmCluster):
        super().__init__({"backend.kind": "slurm", "backend.slurm.time_limit_seconds": 1200})
        self.cluster = cluster

    @property
    def number(self) -> str:
        """Return the Slurm job number of the newest allocation."""
        return files.read_json(self.job.handle_json)["numbers"][-1]

    def start_now(self) -> None:
        """Start a requeued job immediately, without Slurm's delay of two minutes."""
        waits = "JobState=PENDING"
        self.until(lambda: waits in self.cluster.call("scontrol", "show", "job", self.number), waits)
        self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now")


# --- the faults: each submits its job, causes the fault, checks the outcome, and returns its row ----------


def rank_killed(scene: Scene) -> Row:
    """Kill a rank; it is restarted in the same allocation."""
    order = [{"rank": 3, "attempt": 0, "step": 12, "do": "kill", "signal": 9}]
    scene.submit(40, env={"FAKE_FAULTS": json.dumps(order)})
    number = scene.number
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record = scene.record
    scene.rank_failed(3)
    assert record.restarts == 1 and scene.number == number
    assert record.attempts[1].resumed_from_step == 10, record.attempts
    return Row(
        record.attempts[0].cause or "", scene.seconds(), "the supervisor restarts the ranks in the allocation"
    )


def time_limit(scene: Scene) -> Row:
    """Let the job reach its time limit: Slurm sends USR1, the job saves and continues in the next allocation,
    and the result is bit-exact.
    """
    steps = 60
    slow = {"checkpoint.save_interval_steps": 1000, "evaluation.eval_interval_steps": 1000}
    straight = scene.submit(steps, fake=False, name="straight", **slow)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.seen = []
    limits = {
        "backend.slurm.time_limit_seconds": 120,
        "backend.slurm.signal_before_seconds": 30,
        "backend.slurm.resubmissions": 3,
    }
    job = scene.submit(steps, fake=False, name="cut", **{**slow, **limits})
    stop = threading.Event()
    slowdown = threading.Thread(target=_hold_back, args=(scene, job, stop), daemon=True)
    slowdown.start()
    scene.until(lambda: _events(job, QUEUED) > 1, "handed over")
    scene.fault()
    stop.set()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    numbers = files.read_json(job.handle_json)["numbers"]
    assert len(numbers) >= 2, numbers
    assert trace(job.run) == trace(straight.run), "the losses differ from an uninterrupted run"
    assert {len(values) for values in trace(job.run).values()} == {1}
    return Row(
        re.sub(r"Slurm job \d+", "Slurm job 12", _handed_over(job)),
        scene.seconds(),
        "continues in the next allocation, with bit for bit the losses of an uninterrupted run",
    )


def _hold_back(scene: Scene, job: JobDir, stop: threading.Event) -> None:
    """Stop rank 1 for most of every second, so that a tiny run lasts until its time limit."""
    while not stop.is_set():
        beat = Heartbeat.read(job.heartbeat(1))
        held = beat is not None and beat.phase == "train" and beat.process.alive()
        if held and beat:
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat.process.pid, signal.SIGSTOP)
                stop.wait(2.0)
                os.kill(beat.process.pid, signal.SIGCONT)
        time.sleep(0.03)


def _handed_over(job: JobDir) -> str:
    said = [event["message"] for event in read_events(job) if event.get("state") == QUEUED]
    return next(line for line in said if "saved at" in line).partition("QUEUED: ")[2]


def array_chain(scene: Scene) -> Row:
    """Run as a chain of array tasks; each task resumes where the one before it ended."""
    limits = {"backend.slurm.time_limit_seconds": 120, "backend.slurm.signal_before_seconds": 30}
    job = scene.submit(500, **limits, **{"backend.slurm.array": "1-3%1"})
    scene.until(lambda: _events(job, QUEUED) > 1, "handed over")
    scene.fault()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    tasks = {event["message"] for event in read_events(job) if "a new allocation" in event["message"]}
    assert 1 <= len(tasks) <= 2, tasks
    assert scene.record.restarts == 0
    assert not scene.bad_states, scene.seen
    return Row(_handed_over(job), scene.seconds(), "the next task of the array continues")


def _events(job: JobDir, state: str) -> int:
    return sum(event.get("state") == state for event in read_events(job))


def node_lost(scene: Scene) -> Row:
    """Kill slurmd on the second node; Slurm ends the job there and requeues it."""
    scene.submit(300)
    scene.until_step(20)
    scene.fault()
    scene.cluster.kill("n1")
    cause = scene.until_state(QUEUED)
    scene.cluster.start_node("n1")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not scene.bad_states, scene.seen
    assert scene.record.attempts[-1].resumed_from_step, scene.record.attempts
    return Row(cause, scene.seconds(), "Slurm requeues the job; it continues from its newest checkpoint")


def first_node_lost(scene: Scene) -> Row:
    """Kill slurmd on the node of the supervisor."""
    scene.submit(300)
    scene.until_step(20)
    scene.fault()
    scene.cluster.kill("n0")
    scene.until(lambda: "PENDING" in scene.cluster.call("scontrol", "show", "job", scene.number), "PENDING")
    scene.cluster.start_node("n0")
    cause = scene.until_state(QUEUED, SUCCEEDED)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not scene.bad_states, scene.seen
    return Row(
        cause, scene.seconds(), "the same; the supervisor was lost with its node, and Slurm starts a new one"
    )


def _switch_off_second(scene: Scene) -> None:
    """Kill slurmd and the job's processes on the second node, as if the node were switched off."""
    scene.fault()
    scene.cluster.kill("n1")
    agent = NodeRecord.read(scene.job.node(1))
    assert agent is not None
    # slurmstepd, which would otherwise report their end.
    step = int(Path(f"/proc/{agent.agent.pid}/stat").read_text().rpartition(")")[2].split()[1])
    ranks = processes.marked_pids([scene.job.job_id], "NBTRAIN_NODE=1")
    processes.send([step, agent.agent.pid, *ranks], signal.SIGKILL)


def elastic_node_lost(scene: Scene) -> Row:
    """Switch the second node off permanently; the allocation continues with the first node."""
    options = {"sbatch_options": ["--no-kill"], "srun_options": ["--no-kill", "--overlap"]}
    kept = {f"backend.slurm.{name}": value for name, value in options.items()}
    job = scene.submit(300, **{"backend.elastic": True, **kept})
    scene.until_step(20)
    _switch_off_second(scene)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    last = scene.record.attempts[-1]
    assert (last.world_size, last.data_parallel_size, last.nodes) == (2, 2, 1), scene.record.attempts
    assert last.resumed_from_step and scene.number == files.read_json(job.handle_json)["numbers"][0]
    assert not scene.bad_states and QUEUED not in scene.states[1:], scene.seen
    return Row(
        (scene.record.attempts[0].cause or "").replace(f"node {os.uname().nodename} ", "node n1 "),
        scene.seconds(),
        "the allocation continues with data_parallel_size 2 on the remaining node",
    )


def paused(scene: Scene) -> Row:
    """Pause and resume with nbtrain: the job leaves Slurm's queue and comes back as the same job."""
    job = scene.submit(150)
    scene.until_step(20)
    scene.fault()
    state, cause = pause(job)
    assert state == SUSPENDED, scene.seen
    scene.until(lambda: scene.cluster.call("squeue", "-h") == "", "an empty queue")
    assert scene.status() == (SUSPENDED, cause), scene.seen
    assert resume(job.run, command=(FAKE_RANK,)).job_id == job.job_id
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 0 and len(scene.record.attempts) == 2
    return Row(
        f"SUSPENDED: {cause}", scene.seconds(), "not in Slurm until `nbtrain resume`, which submits it again"
    )


def controller_killed(scene: Scene) -> Row:
    """Kill slurmctld with -9 and restart it; the job is not affected."""
    job = scene.submit(250)
    scene.until_step(10)
    scene.fault()
    scene.cluster.kill("slurmctld")
    scene.until(lambda: not _word(job).seen, "the flag")
    state, _ = scene.status()
    assert state == RUNNING and _word(job).state == RUNNING, (state, _word(job))
    words = _status_text(job)
    assert "not reachable" in words, words
    scene.cluster.start_controller()
    scene.until(lambda: _word(job).seen, "Slurm again")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 0 and len(scene.record.attempts) == 1
    assert not scene.bad_states, scene.seen
    flag = next(line for line in words.splitlines() if "not reachable now" in line).strip()
    return Row(
        f"RUNNING, and next to it: {flag}", "0, the job continues", "the job continues; nothing was lost"
    )


def controller_forgets(scene: Scene) -> Row:
    """Kill slurmctld and delete its state, so that Slurm no longer knows the job's number."""
    job = scene.submit(250)
    scene.until_step(10)
    scene.fault()
    scene.cluster.kill("slurmctld")
    for path in (scene.cluster.folder / "state").glob("job_state*"):
        path.unlink()
    scene.cluster.start_controller()
    scene.until(lambda: _word(job).seen and _word(job).state is None, "an unknown number")
    known = scene.status()
    state, cause = scene.end()
    assert known[0] in (RUNNING, state), (known, state)
    after = "the job's own records decide"
    if state != SUCCEEDED:
        scene.job = resume(job.run, command=(FAKE_RANK,))
        assert scene.end()[0] == SUCCEEDED, scene.seen
        after = f"the job is {state}; `nbtrain resume` continues"
    return Row(f"{state}: {cause}" if state != SUCCEEDED else f"{known[0]}", scene.seconds(), after)


def suspended(scene: Scene) -> Row:
    """Suspend the job with scontrol for longer than node_timeout_seconds, and resume it."""
    scene.submit(200, **{"backend.node_timeout_seconds": 8, "backend.heartbeat_timeout_seconds": 15})
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scontrol", "suspend", scene.number)
    cause = scene.until_state(SUSPENDED)
    end = time.monotonic() + 45
    while time.monotonic() < end:
        assert scene.status()[0] == SUSPENDED, scene.seen
        time.sleep(1)
    step = scene.step
    scene.cluster.call("scontrol", "resume", scene.number)
    scene.until(lambda: scene.step > step + 5, "steps after the resume")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert (scene.record.restarts, len(scene.record.attempts)) == (0, 1), scene.record.attempts
    assert not scene.bad_states, scene.seen
    return Row(f"SUSPENDED: {cause}", "0 after `scontrol resume`", "no restart, nothing lost")


def cancelled_outside(scene: Scene) -> Row:
    """Cancel the job with scancel."""
    scene.submit(100_000)
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scancel", scene.number)
    state, cause = scene.end()
    assert state == CANCELLED, scene.seen
    assert "saved at step" in cause, cause
    return Row(f"CANCELLED: {cause}", "", "`nbtrain resume` continues")


def cancelled_while_suspended(scene: Scene) -> Row:
    """Cancel the job with nbtrain while scontrol has suspended it, so that its supervisor cannot read the
    request.
    """
    from nbtrain.jobs.control.control import cancel

    job = scene.submit(100_000)
    scene.until_step(20)
    scene.cluster.call("scontrol", "suspend", scene.number)
    scene.until_state(SUSPENDED)
    state, cause = cancel(job)
    assert state == CANCELLED, (state, cause, scene.seen)
    assert scene.cluster.call("squeue", "-h") == ""
    return Row(f"CANCELLED: {cause}", "", "`nbtrain resume` continues")


def requeued(scene: Scene) -> Row:
    """Requeue the job with scontrol."""
    scene.submit(150)
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scontrol", "requeue", scene.number)
    cause = scene.until_state(QUEUED)
    number = scene.number
    cause = scene.until(lambda: "BeginTime" in scene.status()[1] and scene.status()[1], "its wait")
    scene.start_now()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.number == number and not scene.bad_states, scene.seen
    assert scene.record.attempts[-1].resumed_from_step, scene.record.attempts
    return Row(
        f"QUEUED: {cause}", "120, Slurm's wait", "continues from the checkpoint that it was asked to save"
    )


def _preempt(scene: Scene, seconds: int = 5) -> None:
    """Submit an urgent job on both nodes, for which Slurm takes the run's nodes."""
    request = ("-p", "urgent", "-N", "2", "--cpus-per-task=4", "-o", "/dev/null")
    scene.cluster.call("sbatch", *request, "--wrap", f"sleep {seconds}")


def _preempted(scene: Scene, partition: str, after: str, **settings: Any) -> Row:
    """Preempt the job once; it may not restart."""
    job = scene.submit(120, **{"backend.slurm.partition": partition, "backend.max_restarts": 0, **settings})
    scene.until_step(20)
    # A job that submits itself again has another number then.
    number = scene.number
    scene.fault()
    _preempt(scene)
    cause = scene.until_state(QUEUED)
    assert cause.startswith("preempted, waiting in the queue since "), cause
    if "resubmissions" not in str(settings):
        scene.start_now()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record, summary = scene.record, files.read_json(job.run.summary_json)
    (preemption,) = record.preemptions
    assert (record.restarts, summary["restarts"], summary["preemptions"]) == (0, 0, 1)
    assert preemption.notice.startswith(f"Slurm preempted job {number}") and preemption.lost_steps == 0
    assert summary["preemption_waited_seconds"] == round(preemption.waited_seconds, 3) > 0
    assert not scene.bad_states, scene.seen
    return Row(f"QUEUED: {cause}", scene.seconds(), after)


def preempted_at_once(scene: Scene) -> Row:
    """Preempt the job by a more urgent one, without a grace time."""
    return _preempted(scene, "low", "Slurm puts the job back into its queue; it costs no restart")


def preempted_with_grace(scene: Scene) -> Row:
    """Preempt the job with GraceTime=30: it saves, and leaves its nodes before the 30 s are over."""
    return _preempted(scene, "low-grace", "the same; the job leaves before the grace time is over")


def preempted_and_cancelled(scene: Scene) -> Row:
    """Preempt the job where Slurm cancels preempted jobs."""
    after = "the job submits itself again: `resubmissions`"
    return _preempted(scene, "cancel", after, **{"backend.slurm.resubmissions": 1})


def preempted_and_cancelled_with_grace(scene: Scene) -> Row:
    """Preempt the job with a grace time where Slurm cancels preempted jobs."""
    return _preempted(scene, "cancel-grace", "the same", **{"backend.slurm.resubmissions": 1})


def preempted_without_resubmissions(scene: Scene) -> Row:
    """Preempt the job where Slurm cancels preempted jobs, with no resubmission left."""
    scene.submit(100_000, **{"backend.slurm.partition": "cancel", "backend.max_restarts": 0})
    scene.until_step(20)
    scene.fault()
    _preempt(scene)
    state, cause = scene.end()
    assert state == CANCELLED and "saved at step" in cause and "preempted" in cause, (state, cause)
    return Row(f"CANCELLED: {cause}", "", "`nbtrain resume` continues")


PREEMPTIONS = 10


def preempted_ten_times(scene: Scene) -> Row:
    """Preempt a job with max_restarts 0 ten times; its losses equal the losses of an uninterrupted run."""
    steps = 160
    slow = {"checkpoint.save_interval_steps": 1000, "evaluation.eval_interval_steps": 1000}
    straight = scene.submit(steps, fake=False, name="straight", **slow)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.seen = []
    low = {"backend.slurm.partition": "low", "backend.max_restarts": 0}
    job = scene.submit(steps, fake=False, name="cut", **{**slow, **low})
    stop = threading.Event()
    slowdown = threading.Thread(target=_hold_back, args=(scene, job, stop), daemon=True)
    slowdown.start()
    for number in range(1, PREEMPTIONS + 1):
        scene.until(lambda: scene.status()[0] == RUNNING and scene.step, "a step")
        scene.fault_at = scene.fault_at or time.time()
        _preempt(scene, seconds=1)
        # If the time to save was too short, the next allocation records the preemption.
        scene.start_now()
        scene.until(lambda: len(scene.record.preemptions) >= number, f"preemption {number}")  # noqa: B023
    stop.set()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record = scene.record
    assert (record.restarts, len(record.preemptions)) == (0, PREEMPTIONS), record
    assert trace(job.run) == trace(straight.run), "the losses differ from an uninterrupted run"
    assert {len(values) for values in trace(job.run).values()} == {1}
    lost = sum(preemption.lost_steps for preemption in record.preemptions)
    after = (
        f"SUCCEEDED after ten preemptions, {lost} steps lost, bit for bit the losses of an uninterrupted run"
    )
    return Row("QUEUED ten times", scene.seconds(), after)


def told_to_leave_ten_times(scene: Scene) -> Row:
    """Send TERM to an agent by hand ten times, with max_restarts 9: each costs a restart."""
    fast = {"backend.max_restarts": PREEMPTIONS - 1, "backend.restart_backoff_seconds": 0.1}
    scene.submit(100_000, **{"backend.slurm.partition": "low", **fast})
    for attempt in range(PREEMPTIONS):

        def trains(number: int = attempt) -> bool:
            return scene.record.attempt == number and scene.step > 0

        def has_ended(number: int = attempt) -> bool:
            return scene.record.attempt > number or scene.status()[0] == FAILED

        scene.until(lambda: trains() or scene.status()[0] == FAILED, "a step")
        if scene.status()[0] == FAILED:
            # Two failures of the same kind in a row end a job before its restarts are used up.
            break
        scene.fault_at = scene.fault_at or time.time()
        agent = NodeRecord.read(scene.job.node(1))
        assert agent is not None
        os.kill(agent.agent.pid, signal.SIGTERM)
        scene.until(has_ended, "an end")
    state, cause = scene.end()
    assert (state, scene.record.preemptions) == (FAILED, []), (state, cause)
    named = cause.replace(os.uname().nodename, "n1")
    return Row(f"FAILED: {named}", "", "only Slurm's own record is a preemption; a TERM by hand is a failure")


def noticed(scene: Scene) -> Row:
    """Let backend.preemption_notice announce a preemption and then withdraw it; meanwhile the job waits in
    its allocation.
    """
    notice = scene.cluster.folder / "notice"
    command = ["test", "-e", str(notice)]
    fast = {"backend.preemption_notice": command, "backend.preemption_notice_interval_seconds": 1}
    scene.submit(120, **{"backend.max_restarts": 0, **fast})
    scene.until_step(20)
    scene.fault()
    notice.touch()
    cause = scene.until_state(QUEUED)
    notice.unlink()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record = scene.record
    assert (record.restarts, len(record.preemptions)) == (0, 1), record
    assert "backend.preemption_notice (test) gave notice" in record.preemptions[0].notice
    named = cause.replace(os.uname().nodename, "n0")
    return Row(f"QUEUED: {named}", scene.seconds(), "continues when the command no longer gives notice")


def step_cancelled(scene: Scene) -> Row:
    """Cancel the step of the agents by scancel; the allocation stays."""
    scene.submit(150)
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scancel", f"{scene.number}.0")
    scene.until(lambda: scene.record.restarts, "a restart")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    cause = scene.record.attempts[0].cause or ""
    assert cause.startswith("scancel ended step "), cause
    host = os.uname().nodename
    named = cause.replace(f"nodes {host}, {host} ", "nodes n0, n1 ")
    return Row(named, scene.seconds(), "the supervisor starts the agents again in the allocation")


def supervisor_killed(scene: Scene) -> Row:
    """Kill the supervisor with -9 in its allocation; the batch step fails, so Slurm ends the job."""
    job = scene.submit(100_000)
    scene.until_step(20)
    supervisor = scene.record.supervisor
    assert supervisor is not None
    scene.fault()
    os.kill(supervisor.pid, signal.SIGKILL)
    state, cause = scene.end()
    assert state == LOST, scene.seen
    assert scene.cluster.call("squeue", "-h", "-t", "R") == ""
    scene.job = resume(job.run, {"backend.env": {**_env(job), "FAKE_STEPS": "300"}}, command=(FAKE_RANK,))
    assert scene.end()[0] == SUCCEEDED, scene.seen
    return Row(f"LOST: {cause}", scene.seconds(), "Slurm kills the ranks too; `nbtrain resume` continues")


def _env(job: JobDir) -> dict[str, str]:
    from nbtrain.config.load import load_resolved

    return dict(load_resolved(job.run.config_yaml).backend.env)


# A site's own sbatch, which greets before it submits.
GREETING_SBATCH = """#!/bin/sh
echo "Welcome to the cluster of 2 nodes"
echo "--> Verifying access to partition main ... OK"
exec {sbatch} "$@"
"""


def node_drained(scene: Scene) -> Row:
    """Submit by a wrapped sbatch that prints a banner, while an administrator has drained a node."""
    sbatch = shutil.which("sbatch")
    folder = scene.cluster.folder / "site"
    folder.mkdir()
    (folder / "sbatch").write_text(GREETING_SBATCH.format(sbatch=sbatch))
    (folder / "sbatch").chmod(0o755)
    scene.cluster.call("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=disk")
    with environment({"PATH": f"{folder}:{os.environ['PATH']}"}):
        job = scene.submit(40)
    assert len(files.read_json(job.handle_json)["numbers"]) == 1
    named = "n1 is drained (disk)"
    cause = scene.until(lambda: named in scene.status()[1] and scene.status()[1], named)
    assert _status_text(job).count("start estimated") <= 1, _status_text(job)
    scene.fault()
    scene.cluster.call("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 0 and not scene.bad_states, scene.seen
    return Row(f"QUEUED: {cause}", scene.seconds(), "starts when the node is back")


def second_shell(scene: Scene) -> Row:
    """Submit the same run from two other shells while its job waits or runs; there is still only one job."""
    job = scene.submit(60)
    script = (
        "import sys\nfrom nbtrain.config.load import load_resolved\n"
        "from nbtrain.jobs.submission.submit import submit\n"
        "print(submit(load_resolved(sys.argv[1]), command=(sys.argv[2],)).job_id)\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(job.run.config_yaml), FAKE_RANK],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ids = {other.communicate()[0].strip() for other in others}
    assert ids == {job.job_id}, ids
    assert len(job.run.job_ids()) == 1
    assert len(scene.cluster.call("squeue", "-h").splitlines()) == 1
    assert scene.end()[0] == SUCCEEDED, scene.seen
    return Row("the job that is there", "0, the job continues", "one job; settings that differ are listed")


def _word(job: JobDir) -> EngineWord:
    word = EngineWord.read(job.engine_json)
    assert word is not None
    return word


def _status_text(job: JobDir) -> str:
    from nbtrain.monitor.run.status_text import status_report

    return str(status_report(job.run))


FAULTS = {
    "rank-killed": Fault("kill -9 of a rank on the second node", rank_killed),
    "time-limit": Fault("the time limit of the allocation (`resubmissions: 3`)", time_limit),
    "array": Fault("the same with `array: 1-3%1`", array_chain),
    "node-lost": Fault("kill -9 of slurmd on the second node", node_lost),
    "first-node-lost": Fault("kill -9 of slurmd on the first node", first_node_lost),
    "elastic-node-lost": Fault(
        "the second node is switched off, `backend.elastic: true` and `--no-kill`", elastic_node_lost
    ),
    "controller": Fault("kill -9 of slurmctld, which is restarted", controller_killed),
    "controller-forgets": Fault("slurmctld comes back without its state", controller_forgets),
    "suspended": Fault("`scontrol suspend`, then `resume`", suspended),
    "paused": Fault("`nbtrain pause`, then `nbtrain resume`", paused),
    "scancel": Fault("`scancel` by hand", cancelled_outside),
    "cancel-suspended": Fault("`nbtrain cancel` of a suspended job", cancelled_while_suspended),
    "requeued": Fault("`scontrol requeue` by hand", requeued),
    "preempted": Fault("a more urgent job, `PreemptMode=REQUEUE`, `max_restarts: 0`", preempted_at_once),
    "preempted-grace": Fault("the same with `GraceTime=30`", preempted_with_grace),
    "preempted-cancel": Fault("a more urgent job, `PreemptMode=CANCEL`", preempted_and_cancelled),
    "preempted-cancel-grace": Fault(
        "`PreemptMode=CANCEL` with `GraceTime=30`", preempted_and_cancelled_with_grace
    ),
    "preempted-no-resubmission": Fault(
        "`PreemptMode=CANCEL`, `resubmissions: 0`", preempted_without_resubmissions
    ),
    "preempted-ten-times": Fault("ten preemptions in a row, `max_restarts: 0`", preempted_ten_times),
    "told-ten-times": Fault("ten times `kill` of an agent, `max_restarts: 9`", told_to_leave_ten_times),
    "notice": Fault("the command of `preemption_notice` exits with 0", noticed),
    "step": Fault("`scancel` of the agents' step", step_cancelled),
    "supervisor": Fault("kill -9 of the supervisor", supervisor_killed),
    "drained": Fault("a drained node, and an sbatch of the site that prints a banner", node_drained),
    "second-shell": Fault("two more shells submit the same run", second_shell),
}


# --- the tables -------------------------------------------------------------------------------------------


def engine_code(scene: Scene, job: JobDir) -> str:
    """Return the final state that Slurm reports for the first allocation, once its nodes are free again."""
    number = files.read_json(job.handle_json)["numbers"][0]
    deadline = time.monotonic() + 60
    while True:
        found = read_scontrol(scene.cluster.call("scontrol", "show", "job", "-o", number))
        if found is None or not found.comment.endswith(job.job_id):
            return "not known"
        if found.state not in ("COMPLETING", "RUNNING") or time.monotonic() > deadline:
            return f"{found.state} {found.exit_code}"
        time.sleep(0.5)


@contextlib.contextmanager
def on_a_cluster() -> Iterator[Scene]:
    """Provide a separate Slurm cluster for each fault."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = SlurmCluster(folder).start()
    try:
        with environment(cluster.environment):
            yield Scene(cluster)
    finally:
        cluster.stop()
    shutil.rmtree(folder)


def plain(text: str) -> str:
    """Remove numbers of jobs and steps, and times, from the text."""
    text = re.sub(r"(Slurm job|preempted job|of step) \d+", r"\1 12", text)
    return plain_times(re.sub(r"PreemptTime=[\dT:-]+", "PreemptTime=2026-01-01T12:00:00", text))


TABLES = Tables(
    "faults-slurm.md",
    "tests.jobs.backends.slurm.faults_table",
    FAULTS,
    on_a_cluster,
    missing,
    "Slurm's state and code",
    engine_code,
    plain,
)

if __name__ == "__main__":
    sys.exit(TABLES.main(sys.argv[1:]))
