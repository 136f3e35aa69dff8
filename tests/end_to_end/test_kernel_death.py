"""A kernel that is killed while its run trains disturbs nothing, to the last bit."""

import os
import signal
import time

import pytest
from jupyter_client.manager import KernelManager

from nbtrain.api import verbs as api
from nbtrain.api.run import open_run
from nbtrain.base.events import read_events
from nbtrain.base.rundir import RunDir
from tests.train import launch

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


def trace(run: RunDir) -> list[tuple[int, str, str]]:
    """(step, loss, gradient norm) as float hex, of every step any job of the run made."""
    events = [event for job_id in run.job_ids() for event in read_events(run.job(job_id))]
    return [
        (event["step"], event["loss"], event["grad_norm"]) for event in events if event["kind"] == "trace"
    ]


@pytest.mark.slow
def test_a_killed_kernel_disturbs_nothing(workspace, fork_server):
    """submit in a real kernel, kill -9 the kernel at a step: one job, no restart, the undisturbed curve."""
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
        code = f"import nbtrain as nb\nrun = nb.submit('gpt-tiny', {{**{SETTINGS!r}, 'name': 'orphan'}})"
        reply = client.execute_interactive(code, timeout=900, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
        orphan = open_run("orphan")
        deadline = time.monotonic() + 600
        while len(trace(orphan.directory)) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(kernel.provisioner.pid, signal.SIGKILL)
        killed_at = len(trace(orphan.directory))
        assert orphan.state in ("STARTING", "RUNNING")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert 5 <= killed_at < STEPS
    orphan.wait()
    assert orphan.state == "SUCCEEDED"
    assert len(orphan.directory.job_ids()) == 1
    assert orphan.summary()["restarts"] == 0
    assert trace(orphan.directory) == expected
