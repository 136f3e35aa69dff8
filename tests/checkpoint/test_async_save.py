"""checkpoint.async_save: files are written during training, and a checkpoint counts once it is complete."""

import os
import signal
from pathlib import Path

import pytest
import torch

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.weights.store import CheckpointStore
from tests.train import forked, launch

pytestmark = pytest.mark.slow

STEPS = 8
# Dropout is on, so a resume must restore its random state.
RUN = {
    "model.hidden_size": 32,
    "batch.train_tokens": STEPS * 4 * 32,
    "checkpoint.save_interval_steps": 2,
    "checkpoint.keep_last": 2,
    "checkpoint.keep_best": True,
    "evaluation.eval_interval_steps": 2,
}


class Ranks:
    """Starts and stops the ranks of runs as processes of the fork server."""

    def __init__(self, server, data_home: Path):
        self.server, self.data_home = server, data_home

    def start(self, run: RunDir, ranks: int, *arguments):
        program = "tests.train.slow_disk_rank:main" if arguments else forked.TRAINER
        return forked.start(self.server, self.data_home, run, ranks, arguments, program)

    def train(self, run: RunDir, ranks: int = 1, *arguments) -> None:
        ended = self.server.wait(self.start(run, ranks, *arguments))
        assert ended.succeeded, ended.last_output(40)


@pytest.fixture
def ranks(fork_server, data_home) -> Ranks:
    return Ranks(fork_server, data_home)


def events(run: RunDir, kind: str) -> list[dict]:
    return [event for job in run.job_ids() for event in read_events(run.job(job)) if event["kind"] == kind]


def test_a_run_that_saves_in_the_background_is_the_same_run(tmp_path, ranks):
    """Saving in the background changes no loss and no state, and reports the times of
    the pause and of the writing.

    The disk is so slow that training makes further steps while each checkpoint is written.
    """
    overrides = {**RUN, "parallel.data_parallel_size": 2, "parallel.zero_stage": 2, "precision.dtype": "bf16"}
    runs = {
        name: launch.make_run(tmp_path, {**overrides, "checkpoint.async_save": name == "behind"}, name)
        for name in ("now", "behind")
    }
    now, behind = runs["now"], runs["behind"]
    ranks.train(now, 2)
    ranks.train(behind, 2, "slow", 0)
    assert launch.trace(now) == launch.trace(behind)
    steps = now.checkpoint_steps()
    assert behind.checkpoint_steps() == steps and steps[-1] == STEPS
    stores = [CheckpointStore(run.checkpoint(STEPS)) for run in (now, behind)]
    for name in stores[0].parameters:
        for state in stores[0].parameters[name].states:
            assert torch.equal(*(store.full(name, state) for store in stores)), (name, state)
    losses = {event["step"]: event["loss"] for event in events(behind, "validation")}
    best = min(losses, key=lambda step: (losses[step], -step))
    assert set(steps) == {STEPS - 2, STEPS, best}
    saved = [event for event in events(behind, "checkpoint") if event["message"].endswith("saved")]
    assert [event["step"] for event in saved] == [2, 4, 6, 8]
    assert all(0 < event["stall_seconds"] < event["seconds"] for event in saved)
    assert not list(behind.model.rglob("shares"))


def test_kill_9_while_it_is_being_written_leaves_the_one_before_in_force(tmp_path, ranks):
    """Training continues while a checkpoint hangs; after kill -9 the run resumes bit-exactly from the
    previous one.
    """
    straight = launch.make_run(tmp_path, RUN, "straight")
    ranks.train(straight)
    run = launch.make_run(tmp_path, {**RUN, "checkpoint.async_save": True}, "killed")
    started = ranks.start(run, 1, "hang", 4)
    half = run.checkpoint(4) / ".mp_rank_00_model_states.pt.half.tmp"
    # Step 6 saves again and waits for this save: 5 is the last step that is completed.
    forked.wait_while_alive(lambda: half.exists() and 5 in launch.trace(run), started)
    assert not run.checkpoint_manifest(4).exists()
    os.kill(started.pids[0], signal.SIGKILL)
    assert ranks.server.wait(started).exit_codes == [-signal.SIGKILL]
    launch.new_job(run)
    ranks.train(run)
    warnings = [event["message"] for event in events(run, "warning")]
    assert warnings == [
        "checkpoint global_step4 is not used: manifest.json is missing: the save was interrupted; trying the "
        "previous checkpoint"
    ]
    assert launch.trace(run) == launch.trace(straight)
    made = ResumeCertificate.read(run.newest_job().resume_json)
    assert (made.kind, made.reasons, made.step) == ("bit-exact", [], 2)


def test_a_full_disk_fails_the_run_with_its_cause_and_keeps_what_was_saved(tmp_path, ranks):
    """A full disk fails all ranks at the next step with the system's message; the
    incomplete folder is removed.
    """
    overrides = {**RUN, "parallel.data_parallel_size": 2, "checkpoint.async_save": True}
    run = launch.make_run(tmp_path, overrides, "full")
    started = ranks.start(run, 2, "full", 4)
    ended = ranks.server.wait(started)
    assert ended.exit_codes == [4, 4]
    words = "the checkpoint could not be written: "
    assert words in ended.last_output(40) and "File too large" in ended.last_output(40)
    assert "The previous checkpoint is still valid." in ended.last_output(40)
    assert run.checkpoint_steps() == [2]
    assert run.checkpoint_manifest(2).exists()


@pytest.mark.parametrize(("policy", "exit_code"), [("stop", 8), ("rollback", 0)])
def test_a_bad_step_loses_no_checkpoint_that_is_being_written(tmp_path, ranks, policy, exit_code):
    """When a bad step ends the job or rolls it back, the checkpoint before it is completed first, so that the
    next attempt continues from there, as if it had been written at once.
    """
    overrides = {"parallel.data_parallel_size": 2, "stability.on_nan": policy, "checkpoint.async_save": True}
    run = launch.make_run(tmp_path, {**RUN, **overrides}, "bad")
    launch.order_faults(run, {"step": 5, "do": "nan"})
    ended = ranks.server.wait(ranks.start(run, 2, "slow", 0))
    assert ended.exit_codes == [exit_code] * 2, ended.last_output(40)
    assert max(launch.trace(run)) == 4 and run.checkpoint_manifest(4).exists()
