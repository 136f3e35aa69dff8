"""Saving, stopping, pausing, resuming and cloning runs over REST, as any client can."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load_resolved
from tests.end_to_end.jupyterlab import FAKE_RUN
from tests.lab.server.conftest import Server, ended_run
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen]:
    """Return a job that trains until it is stopped."""
    job = subprocess.Popen(
        [sys.executable, str(FAKE_RUN), str(folder), "--steps", "4000", "--step-seconds", "0.05"]
    )
    try:
        wait_until(lambda: any(folder.glob("jobs/*/heartbeat/0.json")), "no heartbeat")
        yield job
    finally:
        job.kill()
        job.wait()


def test_stop_ends_a_running_job(server: Server) -> None:
    """Stop ends the job's process, and the run states how it ended; an active run cannot be deleted."""
    with running(server.output / "gpt-stopped") as job:
        assert server.get("run/gpt-stopped")["state"] == "RUNNING"
        refused = server.ask("run/gpt-stopped?confirm=gpt-stopped", "DELETE")
        assert refused.status == 409 and "a job is active" in refused.message
        answer = server.ask("run/gpt-stopped/stop", "POST")
        # 202 if the job has not ended within ANSWER_SECONDS.
        assert (answer.status, answer.json["state"]) in ((200, "CANCELLED"), (202, "RUNNING"))
        assert job.wait(300) == 0
        # An answer is cached for a moment, so the first one may be from before the end.
        wait_until(lambda: server.get("run/gpt-stopped")["state"] == "CANCELLED", "the run is not CANCELLED")
        assert server.get("run/gpt-stopped")["cause"].startswith("stopped on request after step ")


def refusal(server: Server, name: str, action: str) -> str:
    """Return the error of an action: the answer's, or if that came before the error, the run's."""
    answer = server.ask(f"run/{name}/{action}", "POST")
    if answer.status == 409:
        return answer.message
    assert answer.status == 202
    wait_until(lambda: server.get(f"run/{name}")["failed_action"], f"the {action} has not failed")
    failed = server.get(f"run/{name}")["failed_action"]
    assert server.get("runs")["failed_actions"][name] == failed
    assert failed["action"] == action
    return failed["message"]


def test_what_has_ended_is_left_as_it_is(server: Server, run: RunDir) -> None:
    """For a finished run, stop returns how it ended; pause and save return that there is nothing to pause or
    save.
    """
    for action in ("stop", "cancel"):
        answer = server.ask(f"run/gpt-done/{action}", "POST", {"now": True})
        assert (answer.status, answer.json["state"]) == (200, "SUCCEEDED")
    assert "can no longer be paused. To continue training" in refusal(server, "gpt-done", "pause")
    assert "can no longer save. To continue training" in refusal(server, "gpt-done", "save")


def test_resume_says_what_the_library_says(server: Server, run: RunDir) -> None:
    """Resuming a finished run is rejected because it needs a longer training length; an override that breaks
    a rule is answered with 422.
    """
    answer = server.ask("run/gpt-done/resume", "POST")
    assert answer.status == 409 and "all 20 steps are done" in answer.message
    answer = server.ask("run/gpt-done/resume", "POST", {"overrides": {"batch.micro_batch_size": 3}})
    assert answer.status == 422 and "micro_batch_size" in answer.message
    answer = server.ask("run/gpt-done/resume", "POST", {"try_code": "no"})
    assert answer.message == 'try_code = "no" must be true or false.'
    assert server.ask("run/gpt-done/resume", "POST", {"overrides": "x"}).message == (
        'overrides = "x" must be a JSON object.'
    )


def test_clone_makes_a_run_with_these_settings(server: Server, run: RunDir) -> None:
    """Clone creates a run directory that records its parent, and starts no job. A name that is in use or
    invalid is rejected.
    """
    body = {"name": "gpt-clone", "overrides": {"lr_schedule.lr": 5e-4}}
    answer = server.ask("run/gpt-done/clone", "POST", body)
    assert (answer.status, answer.json["name"], answer.json["state"]) == (201, "gpt-clone", "NEW")
    made = RunDir(server.output / "gpt-clone")
    assert made.record()["parent"] == run.record()["run_id"]
    assert load_resolved(made.config_yaml).lr_schedule.lr == 5e-4
    again = server.ask("run/gpt-done/clone", "POST", body)
    assert again.status == 409
    assert again.message == "output/gpt-clone already exists. Choose another name for the clone."
    for name, status in (("../x", 422), ("", 422), (None, 400)):
        assert server.ask("run/gpt-done/clone", "POST", {"name": name}).status == status
    assert (
        server.ask("run/gpt-clone/stop", "POST").message
        == "gpt-clone has no job to stop: the run was never submitted."
    )


def test_no_job_to_act_on(server: Server) -> None:
    """Actions on a run that was never submitted are rejected."""
    run = ended_run(server.output, "gpt-new", 1)
    for path in sorted(run.jobs.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert server.ask("run/gpt-new/pause", "POST").status == 409
    assert server.ask("run/gpt-new/job").status == 404
