"""Runs on a real Slurm cluster of two nodes: finished, cancelled, waiting, or with a killed rank."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.node_records import NodeExit
from nbtrain.base.run_directory.records import ExitRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.backends.slurm.engine import call
from nbtrain.jobs.control.control import cancel, pause, wait
from nbtrain.jobs.submission.dry_run import dry_run
from nbtrain.jobs.submission.submit import TRAINER, resume
from tests.clusters import slurm
from tests.jobs.conftest import FAKE_RANK
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
END_SECONDS = 300.0
# `python -m MODULE ARGUMENTS` with the fake rank as the trainer of new jobs.
WITH_FAKE_RANK = (
    "import sys, runpy; from nbtrain.jobs.submission import submit; "
    f"submit.TRAINER = ({FAKE_RANK!r},); module = sys.argv[2]; sys.argv[1:3] = []; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def test_two_nodes_train_to_the_end(on_slurm: Callable[..., Any]) -> None:
    """The real trainer finishes on two nodes; each rank has a log, an exit record and a part in the
    checkpoint.
    """
    job = on_slurm(ranks=2, steps=6, command=TRAINER)
    assert wait(job, END_SECONDS) == (SUCCEEDED, "all steps are trained and saved: 6 steps")
    assert newest_checkpoint_step(job.run) == 6
    assert files.read_json(job.run.summary_json)["steps"] == 6
    assert [ExitRecord.read(job.exit_record(rank, 0)).outcome for rank in range(2)] == ["finished"] * 2
    assert [NodeExit.read(job.node_exit(node, 0)).exit_code for node in range(2)] == [0, 0]
    assert all(job.log(rank, 0).exists() for rank in range(2))


def test_a_killed_rank_is_named_and_the_run_goes_on(on_slurm: Callable[..., Any]) -> None:
    """If a rank on the second node is killed, the supervisor restarts all ranks in the same allocation."""
    job = on_slurm(steps=20, faults=[{"rank": 3, "attempt": 0, "step": 12, "do": "kill", "signal": 9}])
    assert wait(job, END_SECONDS)[0] == SUCCEEDED
    record = JobRecord.read(job.job_json)
    assert record.restarts == 1
    assert record.attempts[0].cause.startswith("rank 3 was killed by SIGKILL")
    assert record.attempts[1].resumed_from_step == 10


def test_a_paused_job_gives_its_nodes_back_and_goes_on(
    on_slurm: Callable[..., Any], cluster: slurm.SlurmCluster
) -> None:
    """A paused job saves, becomes SUSPENDED and leaves Slurm's queue; when it is resumed, it is the same job
    in another allocation.

    A cancel request reaches the supervisor through a file, on any node; afterwards, Slurm has no job of this
    run.
    """
    job = on_slurm(steps=100_000)
    wait_until(lambda: status_of(job)[0] == RUNNING, "RUNNING", END_SECONDS)
    state, cause = pause(job)
    assert state == SUSPENDED
    assert re.fullmatch(r"paused on request at step [\d,]+; saved; `nbtrain resume tiny` continues it", cause)
    wait_until(lambda: cluster.call("squeue", "-h") == "", "an empty queue", END_SECONDS)
    assert resume(job.run).job_id == job.job_id
    wait_until(lambda: status_of(job)[0] == RUNNING, "RUNNING again", END_SECONDS)
    state, cause = cancel(job)
    assert (state, cause.split(" at ")[0]) == (CANCELLED, "stopped on request"), cause
    assert cluster.call("squeue", "-h") == ""
    record, handle = JobRecord.read(job.job_json), files.read_json(job.handle_json)
    assert (record.attempt, record.restarts) == (1, 0)
    # On a busy machine the pause may come before the first step.
    assert (record.attempts[1].resumed_from_step or 0) >= record.attempts[0].reached_step
    assert (len(handle["numbers"]), handle["resumed"]) == (2, 1)


def test_sbatch_alone_starts_the_script_of_a_dry_run(
    fake: Callable[..., Any],
    cluster: slurm.SlurmCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script that a dry run wrote can be started with sbatch alone and then has the records of a
    submission; a second sbatch starts nothing.
    """
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(WITH_FAKE_RANK)} "$@"\n')
    python.chmod(0o755)
    config = fake(steps=4, backend={"kind": "slurm", "slurm.python": str(python)})
    script = dry_run(config, tmp_path / "run.sbatch")
    run = RunDir.named(config.name)
    assert not run.path.exists()
    numbers = [call("sbatch", "--parsable", script.name, folder=tmp_path).strip() for _ in range(2)]
    wait_until(lambda: run.newest_job() and run.newest_job().job_json.exists(), "the job", END_SECONDS)
    job = run.newest_job()
    assert wait(job, END_SECONDS)[0] == SUCCEEDED
    wait_until(lambda: cluster.call("squeue", "-h") == "", "an empty queue", END_SECONDS)
    assert run.job_ids() == [job.job_id]
    [first] = files.read_json(job.handle_json)["numbers"]
    [second] = set(numbers) - {first}
    said = {number: (tmp_path / f"slurm-{number}.out").read_text() for number in numbers}
    assert said[first] == f"job {job.job_id} of tiny: the output continues in {job.supervisor_log}\n"
    assert said[second] == (
        f"nbtrain supervisor: job {job.job_id} of tiny is already running: Slurm job {first} runs it\n"
    )
    assert (job.path / "slurm.0.sbatch").read_text() == script.read_text()
    assert read_events(job)[0]["message"] == "submitted; trains from the beginning"


def test_a_job_that_waits_says_why(on_slurm: Callable[..., Any], cluster: slurm.SlurmCluster) -> None:
    """A waiting job shows why it waits. A pause holds it and a cancel removes it, both without a
    supervisor.
    """
    job = on_slurm(nodes=1, backend={"slurm.sbatch_options": ["--hold"]})

    def held() -> bool:
        return "JobHeldUser" in (status_of(job)[1] or "")

    wait_until(held, "the reason", END_SECONDS)
    state, cause = status_of(job)
    assert state == QUEUED
    number = cause.partition("Slurm job ")[2].partition(" ")[0]
    assert cause.endswith(f"(JobHeldUser): held by its user; to release it, run `scontrol release {number}`")
    assert pause(job) == (
        SUSPENDED,
        "paused while waiting: Slurm holds the job; `nbtrain resume tiny` releases it",
    )
    assert cancel(job)[0] == CANCELLED
    assert JobRecord.read(job.job_json).supervisor is None
    assert cluster.call("squeue", "-h") == ""


def test_what_slurm_refuses_is_said_before_anything_waits(on_slurm: Callable[..., Any]) -> None:
    """A request that Slurm would keep in its queue forever, because it can never be met, is rejected before
    it is sent.
    """
    words = "the run requests 4 nodes, but partition main has only 2 nodes"
    with pytest.raises(SubmitError, match=words) as caught:
        on_slurm(nodes=4, ranks=4)
    assert "Nothing was started and nothing written." in str(caught.value)
