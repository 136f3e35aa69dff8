"""A job that ends at a step with a validation: at a limit it validates first; after SIGTERM, the next job
does.
"""

import pytest

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.rundir import RunDir
from tests.train import launch

pytestmark = pytest.mark.slow

# 8 steps; the loss falls, so that each validation is the best so far.
RUN = {
    "evaluation.eval_interval_steps": 4,
    "checkpoint.save_interval_steps": 4,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": True,
}


def reported(run: RunDir, kind: str) -> list[tuple[int, float]]:
    """Return (step, loss) of all validations or tests, over all jobs."""
    events = [event for job in run.job_ids() for event in read_events(run.job(job)) if event["kind"] == kind]
    return [(event["step"], event["loss"]) for event in events]


def saved(run: RunDir, step: int) -> tuple[int | None, float | None]:
    manifest = launch.manifest(run, step)
    return manifest["evaluated_step"], manifest["validation_loss"]


@pytest.fixture
def train(fork_server, data_home):
    """Return a function that trains the run's newest job, sends SIGTERM during a given step, and returns the
    log.
    """

    def train(run: RunDir, terminated_at: int | None = None) -> str:
        job = run.newest_job()
        environment = {"NBTRAIN_DATA": str(data_home), "NBTRAIN_JOB": job.job_id}
        if terminated_at:
            launch.order_faults(run, {"step": terminated_at, "do": "kill", "signal": 15})
        started = fork_server.start(
            1,
            "nbtrain.train.__main__:main",
            [str(run.path)],
            log=job.path / "logs" / "{rank}.0.log",
            environment=environment,
            timeout_seconds=800,
        )
        ended = fork_server.wait(started)
        assert ended.succeeded, ended.last_output(40)
        return launch.log_of(run)

    return train


def test_however_a_job_ends_each_validation_is_made_once_and_is_its_checkpoints(tmp_path, train):
    """A job that stops at steps 4 and 8, at a limit or by SIGTERM, is validated exactly once at each, with
    the same result.
    """
    limited = launch.make_run(tmp_path, RUN | {"batch.exit_interval_steps": 4}, "limited")
    log = train(limited)
    assert "step      4 | stops: batch.exit_interval_steps = 4 is reached" in log
    validated = reported(limited, "validation")
    assert [step for step, _ in validated] == [4] and saved(limited, 4) == validated[0]
    launch.new_job(limited)
    log = train(limited)
    assert "stops:" not in log
    validated, tested = reported(limited, "validation"), reported(limited, "test")
    assert [step for step, _ in validated] == [4, 8] and validated[0][1] > validated[1][1]
    assert [step for step, _ in tested] == [8]
    assert limited.checkpoint_steps() == [8] and saved(limited, 8) == validated[1]

    killed = launch.make_run(tmp_path, RUN, "killed")
    log = train(killed, terminated_at=4)
    assert "step      4 | stops: this step is due for validation" in log
    assert reported(killed, "validation") == [] and saved(killed, 4) == (None, None)
    launch.new_job(killed)
    log = train(killed, terminated_at=8)
    assert "step      8 | stops: this step is due for validation" in log
    # Not finished: no test yet, and the best checkpoint is still step 4.
    assert (reported(killed, "validation"), reported(killed, "test")) == (validated[:1], [])
    assert killed.checkpoint_steps() == [4, 8]
    assert (saved(killed, 4), saved(killed, 8)) == (validated[0], validated[0])
    for _ in range(2):
        # The second job finds the validation in the manifest.
        launch.new_job(killed)
        train(killed)
    assert reported(killed, "validation") == validated
    assert reported(killed, "test") == tested * 2
    assert killed.checkpoint_steps() == [8] and saved(killed, 8) == validated[1]
