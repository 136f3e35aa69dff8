"""The whole chain with the real trainer: an interrupted run equals an uninterrupted run.

Both runs have dropout, accumulation, two ranks and ZeRO 1. Every step records its loss and gradient norm as
hexadecimal floats (NBTRAIN_TRACE). A step that is repeated after a restart must be bit-identical.

In the main test, one run has two jobs. Tests marked `soak` interrupt a run in each way separately.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved, to_yaml
from nbtrain.jobs.control import control
from nbtrain.jobs.machine import processes
from nbtrain.jobs.submission.submit import resume, submit
from tests.jobs.conftest import trace
from tests.train import launch
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

STEPS = 240
ENVIRONMENT = {"NBTRAIN_TRACE": "1", "OMP_NUM_THREADS": "1"}
SETTINGS = {
    "parallel.data_parallel_size": 2,
    "batch.train_tokens": STEPS * 8 * 16,
    "checkpoint.save_interval_steps": 20,
    "evaluation.eval_interval_steps": 50,
    "backend.env": ENVIRONMENT,
}
# The main test, in which a rank is stopped until the supervisor is dead, however fast its steps are.
SHORT_STEPS, STOP_AT = 40, 6
SHORT = {**SETTINGS, "batch.train_tokens": SHORT_STEPS * 8 * 16, "evaluation.eval_interval_steps": 15}


def last_step(run: RunDir) -> int:
    return max(trace(run), default=0)


def test_the_life_of_a_run(tiny, tiny_data, workspace, fork_server):
    """A run that lost its supervisor and then finished equals an uninterrupted run bit for bit.

    Losses, weights and optimizer states are compared. The uninterrupted run had no supervisor, was measured
    before training and evaluated after it.
    """
    straight = launch.make_run(workspace, SHORT, "straight", str(workspace / "tiny.yaml"))
    forked = launch.ForkedRuns(fork_server, tiny_data)

    def train_straight(mode: str) -> JobDir:
        config = tiny(name="straight", mode=mode, **SHORT)
        files.write_text(straight.config_yaml, to_yaml(config))
        job = launch.new_job(straight)
        forked.train(straight, ranks=2)
        return job

    measured = train_straight("perf")
    assert straight.checkpoint_steps() == []
    measurement = next(event for event in read_events(measured) if event["kind"] == "throughput")
    assert (measurement["step"], measurement["steps"], measurement["samples"]) == (20, 15, 120)
    trained = train_straight("full")
    expected = trace(straight)
    assert sorted(expected) == list(range(1, SHORT_STEPS + 1))
    assert {len(values) for values in expected.values()} == {1}
    same_losses_at(SHORT_STEPS, trained, train_straight("eval"))

    faults = json.dumps([{"step": STOP_AT, "do": "stop", "rank": 1}])
    orphaned = submit(tiny(name="cut", **{**SHORT, "backend.env": {**ENVIRONMENT, "NBTRAIN_FAULTS": faults}}))
    run = orphaned.run
    rank = wait_until(lambda: stopped(orphaned.heartbeat(1)), "rank 1 is stopped")
    os.kill(JobRecord.read(orphaned.job_json).supervisor.pid, signal.SIGKILL)
    wait_until(lambda: read_state(orphaned, time.time())[0] == "LOST", "LOST")
    wait_until(lambda: is_asked_to_leave(rank), "rank 1 is asked to leave")
    os.kill(rank, signal.SIGCONT)
    wait_until(lambda: not processes.marked_pids([orphaned.job_id]), "the ranks' leaving")
    left = ExitRecord.read(orphaned.exit_record(0, 0))
    assert left.outcome == "stopped" and left.step in run.checkpoint_steps()

    ended = resume(run)
    assert control.wait(ended, 800)[0] == "SUCCEEDED", ended.log(0, 0).read_text()
    assert JobRecord.read(ended.job_json).resumed_from_step == left.step < SHORT_STEPS
    assert trace(run) == expected
    saved_in_the_background(ended)
    hashes = optimizer_hashes(run, SHORT_STEPS)
    assert len(hashes) == 2 and hashes == optimizer_hashes(straight, SHORT_STEPS)
    assert list(run.path.rglob(".*.tmp")) == []


def saved_in_the_background(job: JobDir) -> None:
    """Check that a run with the default async_save wrote its checkpoints in the background, and that its end
    waited for the last one.
    """
    [attempt] = JobRecord.read(job.job_json).attempts
    assert load_resolved(job.run.config_yaml).checkpoint.async_save is None and attempt.async_save
    assert attempt.saving.startswith("checkpoints are written in the background: ")
    saved = [event for event in read_events(job) if "stall_seconds" in event]
    assert saved and all(event["stall_seconds"] < event["seconds"] for event in saved)
    assert saved[-1]["step"] == SHORT_STEPS and job.run.checkpoint_manifest(SHORT_STEPS).is_file()


def stopped(heartbeat: Path) -> int:
    """Return the rank's process id if a signal has stopped it, else 0."""
    beat = Heartbeat.read(heartbeat)
    is_stopped = beat and psutil.Process(beat.process.pid).status() == psutil.STATUS_STOPPED
    return beat.process.pid if is_stopped else 0


def is_asked_to_leave(pid: int) -> bool:
    """Return whether a stopped process gets a SIGTERM once it continues."""
    [pending] = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> signal.SIGTERM - 1 & 1)


@pytest.mark.soak
def test_interrupted_in_every_way_is_bitwise_the_same(tiny):
    """After a rank was killed, the supervisor was killed or the job was cancelled, curve and weights are
    still bit-exact.
    """
    straight = submit(tiny(name="straight", **SETTINGS))
    assert control.wait(straight, 800)[0] == "SUCCEEDED", straight.log(0, 0).read_text()
    expected = trace(straight.run)
    assert sorted(expected) == list(range(1, STEPS + 1))

    first = submit(tiny(name="cut", **SETTINGS))
    run = first.run
    wait_until(lambda: last_step(run) >= 30, "step 30")
    os.kill(Heartbeat.read(first.heartbeat(1)).process.pid, signal.SIGKILL)
    wait_until(lambda: JobRecord.read(first.job_json).attempt == 1, "a restart")
    assert ExitRecord.read(first.exit_record(1, 0)).signal == signal.SIGKILL
    reached = last_step(run)
    wait_until(lambda: last_step(run) >= reached + 30, "30 more steps")

    supervisor = JobRecord.read(first.job_json).supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: read_state(first, time.time())[0] == "LOST", "LOST")
    wait_until(lambda: not processes.marked_pids([first.job_id]), "the ranks' leaving")
    assert ExitRecord.read(first.exit_record(0, 1)).outcome == "stopped"

    second = resume(run)
    assert second.job_id != first.job_id
    reached = last_step(run)
    wait_until(lambda: last_step(run) >= reached + 20, "20 more steps")
    os.kill(JobRecord.read(second.job_json).supervisor.pid, signal.SIGTERM)
    state, cause = control.wait(second, 800)
    assert state == "CANCELLED", cause
    assert processes.marked_pids([second.job_id]) == []
    assert last_step(run) < STEPS

    third = resume(run)
    assert control.wait(third, 800)[0] == "SUCCEEDED", third.log(0, 0).read_text()
    assert trace(run) == expected
    hashes = optimizer_hashes(run, STEPS)
    assert len(hashes) == 2 and hashes == optimizer_hashes(straight.run, STEPS)
    assert list(run.path.rglob(".*.tmp")) == []
    summary = files.read_json(run.summary_json)
    assert (summary["steps"], summary["state"]) == (STEPS, "SUCCEEDED")


@pytest.mark.soak
def test_a_job_ends_itself_by_its_limits(tiny):
    """At a limit of steps or time, a job saves and ends with that cause, and can be resumed."""
    first = submit(tiny(**{"batch.exit_interval_steps": 3}))
    assert control.wait(first, 800) == (
        "CANCELLED",
        "batch.exit_interval_steps = 3 is reached at step 3; saved; `nbtrain resume` continues the run",
    )
    second = resume(first.run, ["batch.exit_interval_steps=null", "batch.exit_duration_minutes=1e-3"])
    assert control.wait(second, 800) == (
        "CANCELLED",
        "batch.exit_duration_minutes = 0.001 is reached at step 4; saved; `nbtrain resume` continues the run",
    )
    assert first.run.checkpoint_steps() == [3, 4]
    assert "stops: batch.exit_duration_minutes = 0.001 is reached" in second.log(0, 0).read_text()
    third = resume(first.run, ["batch.exit_duration_minutes=null"])
    assert control.wait(third, 800)[0] == "SUCCEEDED"


@pytest.mark.soak
def test_a_perf_run_measures_and_leaves_no_checkpoint(tiny):
    """A run with mode=perf leaves no checkpoint and reports metrics that exclude warm-up; with mode=full it
    then trains.
    """
    job = submit(tiny(mode="perf"))
    assert control.wait(job, 800) == (
        "SUCCEEDED",
        "all steps are measured, and no checkpoint is saved: 10 steps",
    )
    assert job.run.checkpoint_steps() == []
    events = {event["kind"]: event for event in read_events(job)}
    assert not events.keys() & {"checkpoint", "validation", "test"}
    measured = events["throughput"]
    assert (measured["step"], measured["steps"], measured["samples"]) == (10, 8, 64)
    summary = files.read_json(job.run.summary_json)
    assert summary["tokens_per_second"] == measured["tokens_per_second"]
    assert measured["tokens_per_second"] == pytest.approx(64 * 16 / measured["seconds"])
    full = resume(job.run, ["mode=full"])
    assert control.wait(full, 800)[0] == "SUCCEEDED"
    assert full.run.checkpoint_steps() == [8, 10]


@pytest.mark.soak
def test_an_evaluation_reports_the_losses_of_the_training(tiny):
    """An evaluation of the newest checkpoint reports the final losses of the training; afterwards, training
    can continue.
    """
    trained = submit(tiny())
    assert control.wait(trained, 800)[0] == "SUCCEEDED"
    run = trained.run
    evaluated = resume(run, ["mode=eval"])
    assert control.wait(evaluated, 800) == (
        "SUCCEEDED",
        "the newest checkpoint is evaluated, and nothing is trained",
    )
    same_losses_at(10, trained, evaluated)
    assert run.checkpoint_steps() == [8, 10]
    assert not any(
        event["kind"] == "checkpoint" and "saved" in event["message"] for event in read_events(evaluated)
    )
    longer = resume(run, ["mode=full", "batch.train_tokens=1536"])
    assert control.wait(longer, 800)[0] == "SUCCEEDED"
    assert last_saved(run) == 12


def same_losses_at(step: int, trained: JobDir, evaluated: JobDir) -> None:
    """Assert that the evaluating job reports one loss of each kind, equal to the training's last one."""
    for kind in ("validation", "test"):
        before, after = (
            [event for event in read_events(job) if event["kind"] == kind] for job in (trained, evaluated)
        )
        assert [(event["loss"], event["step"]) for event in after] == [(before[-1]["loss"], step)]


def last_saved(run: RunDir) -> int:
    return max(run.checkpoint_steps())


def optimizer_hashes(run: RunDir, step: int) -> dict[str, str]:
    """Return the SHA-256 of the files with fp32 master weights and moments at a step."""
    manifest = files.read_json(run.checkpoint_manifest(step))
    return {name: entry["sha256"] for name, entry in manifest["files"].items() if "optim_states" in name}
