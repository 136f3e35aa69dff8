"""Fixtures: a tiny prepared run, a rank program that does not train, and a check that no process is left."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.machine import environment, processes
from nbtrain.jobs.submission.submit import submit
from nbtrain.monitor.runs.runs import list_runs

FAKE_RANK = str(Path(__file__).parent / "fake_rank.py")

TINY = """
name: tiny
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16, hidden_dropout: 0.1}
tokenizer: {name: mock, vocab_size: 384}
data: {name: mock, split: "80,10,10", sources: [{kind: mock, num_documents: 300}]}
batch: {micro_batch_size: 2, global_batch_size: 8, train_tokens: 1280}
lr_schedule: {lr: 1.0e-3, lr_warmup_tokens: 128}
precision: {dtype: fp32}
checkpoint: {save_interval_steps: 4}
evaluation: {eval_interval_steps: 5, eval_iters: 1}
resources: {device: cpu}
backend: {restart_backoff_seconds: 0.2, shutdown_timeout_seconds: 20}
"""


def trace(run: RunDir) -> dict[int, set[tuple[str, str]]]:
    """Return {step: set of (loss, gradient norm)} with everything that the run's jobs have written."""
    steps: dict[int, set[tuple[str, str]]] = {}
    for job_id in run.job_ids():
        for event in read_events(run.job(job_id)):
            if event["kind"] == "trace":
                steps.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"]))
    return steps


@pytest.fixture(scope="session", autouse=True)
def versions_read_once() -> Iterator[None]:
    """Read the versions of the installed packages once; each submission records eight of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "package_version", functools.cache(environment.package_version))
        yield


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the tokenizer and dataset of the tiny run once, in one data directory."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_DATA", str(folder))
        yaml = folder / "tiny.yaml"
        yaml.write_text(TINY)
        prepare(load(yaml))
    return folder


@pytest.fixture
def tiny(workspace: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    """Return a function that creates the configuration of the tiny run, with overrides, in a separate
    workspace.
    """
    monkeypatch.setenv("NBTRAIN_DATA", str(tiny_data))
    (workspace / "tiny.yaml").write_text(TINY)
    return lambda **overrides: load(workspace / "tiny.yaml", overrides)


@pytest.fixture
def fake(tiny: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Return a function that creates the tiny run with fake ranks: fake(faults=[...], steps=20, ranks=2,
    backend={...}).
    """

    def make(
        faults: list[dict[str, Any]] | None = None, ranks: int = 1, backend: Any = None, **fake: Any
    ) -> RunConfig:
        env = {f"FAKE_{key.upper()}": str(value) for key, value in fake.items()}
        env["FAKE_FAULTS"] = json.dumps(faults or [])
        more = {f"backend.{key}": value for key, value in (backend or {}).items()}
        tokens = fake.get("steps", 20) * 8 * 16
        return tiny(
            **{"parallel.data_parallel_size": ranks, "batch.train_tokens": tokens, "backend.env": env, **more}
        )

    return make


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test, check that no process is left that has the marker of a job it started."""
    yield
    if "workspace" not in request.fixturenames:
        return
    ids = [job_id for entry in list_runs() for job_id in RunDir.named(entry.name).job_ids()]
    left = processes.marked_pids(ids)
    processes.end_marked(ids, 0.0)
    assert left == [], "processes were left behind"


@pytest.fixture
def states_of() -> Callable[[JobDir], list[str]]:
    """Return the states of a job in the order in which they occurred."""
    return lambda job: [
        event["state"] for event in read_events(job) if event["kind"] == "state" and "state" in event
    ]


@pytest.fixture
def start() -> Callable[..., JobDir]:
    """Submit a run whose ranks run the fake rank instead of the trainer."""

    def start(config: RunConfig, **more: Any) -> JobDir:
        return submit(config, command=(FAKE_RANK,), **more)

    return start
