"""A sweep of the real trainer: two runs killed, every process killed, a boot, and the same to the last bit.

Every step records its loss and gradient norm as hexadecimal floats (NBTRAIN_TRACE).
"""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, SUCCEEDED
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.submission.submit import TRAINER
from nbtrain.jobs.sweep import drive as driver
from nbtrain.jobs.sweep.drive import Turn, drive
from nbtrain.jobs.sweep.results import sweep_results
from nbtrain.jobs.sweep.sweep_file import read_sweep
from tests.jobs.sweep.test_drive import DRIVER, as_before_a_boot, kill_everything
from tests.jobs.test_real_trainer import optimizer_hashes, trace
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

STEPS, KILLED_AT, BOOTED_AT = 40, 12, 22
# A rank stops itself at these steps, so that it is killed there however fast it is. A save in the background
# could still be writing step 10 then, and the next attempt would rightly start from step 0.
STOPS = (
    f'[{{"step": {KILLED_AT}, "attempt": 0, "do": "stop"}}, '
    f'{{"step": {BOOTED_AT}, "attempt": 1, "do": "stop"}}]'
)
SWEEP = """
sweep: {name}
run: tiny.yaml
overrides:
  batch.train_tokens: {tokens}
  checkpoint.save_interval_steps: 10
  checkpoint.async_save: false
  evaluation.eval_interval_steps: 15
  backend.share_devices: true
  backend.env: {{NBTRAIN_TRACE: "1", OMP_NUM_THREADS: "1", NBTRAIN_FAULTS: '{faults}'}}
grid: {{lr_schedule.lr: [1.0e-3, 2.0e-3], model.seed: [1, 2, 3]}}
at_once: 2
"""


def stopped_rank(name: str, attempt: int) -> int:
    """Return the process id of a run's rank if it has stopped itself in this attempt, else 0."""
    run = RunDir.named(name)
    job = run.newest_job() if run.path.is_dir() else None
    beat = Heartbeat.read(job.heartbeat(0)) if job else None
    if beat is None or beat.attempt != attempt:
        return 0
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(beat.process.pid).status() == psutil.STATUS_STOPPED:
            return beat.process.pid
    return 0


def let_continue(turn: Turn) -> None:
    """Continue the ranks that have stopped themselves: of the runs that were not cut."""
    for name, state in turn.states.items():
        if state in ACTIVE and (pid := stopped_rank(name, 0)):
            os.kill(pid, signal.SIGCONT)


def outcome(name: str) -> dict[str, Any]:
    """Return what a run has come to: every step's loss and gradient norm, and the hashes of its state."""
    run = RunDir.named(name)
    return {"trace": trace(run), "optimizer": optimizer_hashes(run, STEPS)}


def test_a_sweep_that_was_killed_equals_an_undisturbed_one(tiny, workspace):
    """Two of six runs are killed, then every process of the sweep, and the machine boots: the next call ends
    the sweep, and losses, gradient norms and optimizer states of all runs are those of an undisturbed one.
    """
    tiny()
    sweeps = {}
    for name, faults in (("straight", "[]"), ("cut", STOPS)):
        path = workspace / f"{name}.yaml"
        path.write_text(SWEEP.format(name=name, tokens=STEPS * 8 * 16, faults=faults))
        sweeps[name] = read_sweep(path)
    assert set(drive(sweeps["straight"]).states.values()) == {SUCCEEDED}

    cut = sweeps["cut"]
    names = [run.name for run in cut.runs[:2]]
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(cut.path), *TRAINER], cwd=workspace) as process:
        ranks = [wait_until(lambda name=name: stopped_rank(name, 0), f"{name} has stopped") for name in names]
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        for name in names:
            wait_until(lambda name=name: stopped_rank(name, 1), f"{name} has stopped again")
        process.kill()
        kill_everything(workspace)
    for name in names:
        record = JobRecord.read(RunDir.named(name).newest_job().job_json)
        assert record.restarts == 1 and record.attempts[1].resumed_from_step == 10
        as_before_a_boot(RunDir.named(name))
        assert driver.state_of(name) == LOST

    said = []
    turn = drive(cut, say=said.append, turn_done=let_continue)
    assert set(turn.states.values()) == {SUCCEEDED} and not turn.errors
    assert {f"{name}: resumed" for name in names} <= set(said)
    for left, right in zip(sweeps["straight"].runs, cut.runs):
        found = outcome(right.name)
        assert sorted(found["trace"]) == list(range(1, STEPS + 1))
        assert found == outcome(left.name), right.name
    one, other = sweep_results("straight"), sweep_results("cut")
    assert [setting.values for setting in one.settings] == [setting.values for setting in other.settings]
    assert one.best.settings == other.best.settings
    # How many steps a killed attempt has lost is known to the second: its heartbeat says how far it was.
    assert len(other.spending.faults) == 4 and not one.spending.faults
    assert other.spending.hours["restart"] > 0
