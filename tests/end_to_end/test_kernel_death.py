"""Killing the kernel of a training run does not change the run in any bit."""

import json
import os
import signal

import psutil
import pytest
from jupyter_client.manager import KernelManager

from nbtrain.api import verbs as api
from nbtrain.api.run import open_run
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from tests.train import launch
from tests.waiting import wait_until

STEPS = 60
SETTINGS = {
    "model.num_layers": 2,
    "model.hidden_size": 64,
    "model.seq_length": 64,
    "model.hidden_dropout": 0.1,
    "tokenizer.name": "mock",
    "tokenizer.vocab_size": 512,
    "data.name": "mock",
    "data.sources": [{"kind": "mock", "num_documents": 2000}],
    "batch.micro_batch_size": 4,
    "batch.global_batch_size": 8,
    "batch.max_steps": STEPS,
    "evaluation.eval_iters": 1,
    "backend.env": {"NBTRAIN_TRACE": "1", "OMP_NUM_THREADS": "1"},
}
# The rank is stopped until the kernel is dead, because all its steps together take a second or two.
STOP_AT = 6
FAULTS = json.dumps([{"step": STOP_AT, "do": "stop"}])


def trace(run: RunDir) -> list[tuple[int, str, str]]:
    """Return step, loss and gradient norm (as hexadecimal floats) of every step, over all jobs of the run."""
    events = [event for job_id in run.job_ids() for event in read_events(run.job(job_id))]
    return [
        (event["step"], event["loss"], event["grad_norm"]) for event in events if event["kind"] == "trace"
    ]


def stopped_rank(run: RunDir) -> psutil.Process:
    """Wait until the run's only rank is stopped by a signal, and return its process."""

    def stopped() -> psutil.Process | None:
        if (job := run.newest_job()) is None or (beat := Heartbeat.read(job.heartbeat(0))) is None:
            return None
        rank = psutil.Process(beat.process.pid)
        return rank if rank.status() == psutil.STATUS_STOPPED else None

    return wait_until(stopped, "the rank is not stopped")


@pytest.mark.slow
def test_a_killed_kernel_disturbs_nothing(workspace, fork_server):
    """After kill -9 of the process group of the kernel that submitted it, a run has one job, no restart, and
    the same curve.
    """
    api.prepare("gpt-tiny", SETTINGS)
    straight = launch.make_run(workspace, SETTINGS, "straight", source="gpt-tiny")
    launch.ForkedRuns(fork_server, workspace / "data").train(straight)
    expected = trace(straight)
    assert [step for step, _, _ in expected] == list(range(1, STEPS + 1))

    kernel = KernelManager(kernel_name="python3")
    kernel.start_kernel()
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=900)
        own = {"name": "orphan", "backend.env": {**SETTINGS["backend.env"], "NBTRAIN_FAULTS": FAULTS}}
        code = f"import nbtrain as nb\nrun = nb.submit('gpt-tiny', { ({**SETTINGS, **own})!r})"
        reply = client.execute_interactive(code, timeout=900, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
        orphan = open_run("orphan")
        rank = stopped_rank(orphan.directory)
        try:
            os.killpg(os.getpgid(kernel.provisioner.pid), signal.SIGKILL)
            killed_at = len(trace(orphan.directory))
            # The supervisor may not have looked at the rank since it trains.
            wait_until(lambda: orphan.state != "STARTING", "the run still starts")
            assert orphan.state == "RUNNING"
        finally:
            rank.send_signal(signal.SIGCONT)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert killed_at == STOP_AT - 1
    orphan.wait()
    assert orphan.state == "SUCCEEDED"
    assert len(orphan.directory.job_ids()) == 1
    assert orphan.summary()["restarts"] == 0
    assert trace(orphan.directory) == expected
