"""Run directories, datasets of random tokens, and ranks that train on them.

start and train run the ranks under torchrun, as a user does. ForkedRuns forks them from the server that all
tests share, which saves importing torch and DeepSpeed; that takes longer than the steps of a small model.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_run_id
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.load.attempt import attempt_record
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.manifest import DatasetManifest
from tests.dataset.indexed_writer import IndexedWriter
from tests.dataset.manifest_source import SOURCE

if TYPE_CHECKING:
    from nbtrain.proof.fork_client import Ended, ForkServer

REPOSITORY = Path(__file__).parents[2]
VOCAB_SIZE = 500
# On a busy machine, what normally takes seconds may take minutes.
TIMEOUT_SECONDS = 800.0

TINY = f"""
name: tiny
model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  seq_length: 32
  cross_entropy_chunk_tokens: 48
tokenizer: {{name: test, vocab_size: {VOCAB_SIZE}}}
data: {{name: test, split: "90,5,5"}}
batch: {{micro_batch_size: 2, global_batch_size: 4, train_tokens: 1024}}
lr_schedule: {{lr: 1.0e-3, min_lr: 1.0e-5, lr_warmup_tokens: 256}}
precision: {{dtype: fp32}}
parallel: {{zero_stage: 1}}
checkpoint: {{save_interval_steps: 1000}}
evaluation: {{eval_interval_steps: 4, eval_iters: 1}}
resources: {{device: cpu}}
"""


def make_dataset(
    home: Path,
    name: str = "test",
    documents: int = 400,
    document_tokens: tuple[int, int] = (20, 80),
    vocab_size: int = VOCAB_SIZE,
) -> None:
    """Create a dataset of random walks over the vocabulary, which a model can learn, in the data directory
    `home`.

    Each document has a random length in [first, last) and ends with the end-of-document token.
    """
    target = DatasetFiles(home / "dataset" / name)
    target.directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    with IndexedWriter(target.prefix, vocab_size, eod_id=0) as writer:
        for _ in range(documents):
            steps = generator.integers(1, 4, size=generator.integers(*document_tokens))
            writer.add_document((np.cumsum(steps) + generator.integers(vocab_size)) % vocab_size)
    written = writer.written
    assert written is not None
    manifest = DatasetManifest(
        json_key="text",
        sources=[],
        counts={
            "documents": written.num_documents,
            "tokens": written.num_tokens,
            "bytes": None,
            "dropped": {},
        },
        vocab_size=vocab_size,
        dtype=writer.dtype.name,
        eod_id=0,
        tokenizer_sha256="0" * 64,
        files=written.files,
    )
    files.write_json(target.manifest_json, manifest.to_dict())


def make_packed(home: Path) -> None:
    """Create the dataset `packed`: 300 examples with 6 to 30 tokens from two sources, of which the second
    half is in the loss.
    """
    target = DatasetFiles(home / "dataset" / "packed")
    target.directory.mkdir(parents=True)
    generator = np.random.default_rng(3)
    with (
        IndexedWriter(target.prefix, VOCAB_SIZE, None) as tokens,
        IndexedWriter(target.loss_mask.prefix, None, None, dtype="u1") as mask,
    ):
        for _ in range(300):
            ids = generator.integers(1, VOCAB_SIZE, size=generator.integers(6, 30))
            tokens.add_document(ids)
            mask.add_document(np.arange(len(ids)) >= len(ids) // 2)
    assert tokens.written is not None and mask.written is not None
    sources = [
        SOURCE | {"kind": "chat", "name": "talk", "sequences": [0, 100], "weight": 1.0},
        SOURCE | {"kind": "alpaca", "name": "alpaca", "sequences": [100, 300], "weight": 0.5},
    ]
    counts = {"documents": 300, "tokens": tokens.written.num_tokens, "bytes": None, "dropped": {}}
    written = tokens.written.files | mask.written.files
    manifest = DatasetManifest("text", sources, counts, VOCAB_SIZE, tokens.dtype.name, 0, "0" * 64, written)
    files.write_json(target.manifest_json, manifest.to_dict())


def make_pairs(home: Path, pairs: int = 120) -> None:
    """Create the dataset `pairs`: prompts of 2 to 6 tokens, each with two answers of 2 to 8 tokens. One pair
    is too long.

    Tokens of chosen answers are from the lower half of the vocabulary, tokens of rejected ones from the upper
    half.
    """
    target = DatasetFiles(home / "dataset" / "pairs")
    target.directory.mkdir(parents=True)
    generator, half = np.random.default_rng(4), VOCAB_SIZE // 2
    with (
        IndexedWriter(target.prefix, VOCAB_SIZE, None) as tokens,
        IndexedWriter(target.loss_mask.prefix, None, None, dtype="u1") as mask,
    ):
        for number in range(pairs):
            prompt = generator.integers(1, VOCAB_SIZE, size=generator.integers(2, 7))
            sizes = (40, 3) if number == 7 else generator.integers(2, 9, size=2)
            ids, learnt = [], []
            for (first, last), size in zip(((1, half), (half, VOCAB_SIZE)), sizes, strict=True):
                ids += [*prompt, *generator.integers(first, last, size=size), 0]
                learnt += [0] * len(prompt) + [1] * (size + 1)
            tokens.add_document(np.array(ids))
            mask.add_document(np.array(learnt))
    assert tokens.written is not None and mask.written is not None
    sources = [SOURCE | {"kind": "preference", "name": "preference", "sequences": [0, pairs], "weight": 1.0}]
    counts = {"documents": pairs, "tokens": tokens.written.num_tokens, "bytes": None, "dropped": {}}
    written = tokens.written.files | mask.written.files
    manifest = DatasetManifest("text", sources, counts, VOCAB_SIZE, tokens.dtype.name, 0, "0" * 64, written)
    files.write_json(target.manifest_json, manifest.to_dict())


def make_run(
    root: Path,
    overrides: dict[str, Any] | None = None,
    name: str = "tiny",
    source: str | None = None,
    trace: bool = True,
) -> RunDir:
    """Create the run directory `root`/output/`name` with one job, like submit, from the configuration TINY or
    a run's YAML.
    """
    root.mkdir(parents=True, exist_ok=True)
    if source is None:
        tiny = root / "tiny.yaml"
        tiny.write_text(TINY)
        source = str(tiny)
    config = load(source, {"name": name, **(overrides or {})})
    run = RunDir(root / "output" / name)
    run.path.mkdir(parents=True)
    record = {
        "schema_version": 1,
        "run_id": new_run_id(),
        "name": name,
        "parent": None,
        "created_at": time.time(),
    }
    files.write_json(run.run_json, record)
    files.write_text(run.config_yaml, to_yaml(config))
    new_job(run, trace)
    return run


def new_job(run: RunDir, trace: bool = True) -> JobDir:
    """Add a job to the run; its id sorts after the ids of the other jobs."""
    job = run.job(run.unused_job_id())
    job.make_folders()
    config, record = load_resolved(run.config_yaml), run.record()
    assert record is not None
    written = JobRecord(job.job_id, record["run_id"], run.name, "RUNNING", time.time(), config.world_size)
    written.attempts = [replace(attempt_record(config, 0), trace=trace)]
    written.write(job.job_json)
    return job


def order_faults(run: RunDir, *faults: dict[str, Any]) -> None:
    """Configure faults for the first attempt of the newest job."""
    job = run.newest_job()
    assert job is not None
    record = JobRecord.read(job.job_json)
    assert record is not None
    record.attempts[0].faults = list(faults)
    record.write(job.job_json)


def start(run: RunDir, data_home: Path, ranks: int = 1, **environment: str) -> subprocess.Popen:
    """Start torchrun in a new session for the newest job; its output goes to the log of rank 0."""
    job = run.newest_job()
    assert job is not None
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port_to_listen_on())]
    command += ["-m", "nbtrain.train", str(run.path)]
    variables = {
        "OMP_NUM_THREADS": "1",
        "NBTRAIN_DATA": str(data_home),
        "NBTRAIN_JOB": job.job_id,
        **environment,
    }
    with job.log(0, 0).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **variables}, start_new_session=True
        )


def wait(process: subprocess.Popen, run: RunDir, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Wait for the ranks and return the log. Fails the test if a rank exited with an error."""
    code = end(process, timeout_seconds)
    text = log_of(run)
    assert code == 0, f"exit code {code}\n{text[-4000:]}"
    return text


def end(process: subprocess.Popen, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """Return the exit code, and kill all processes that are left, even after a timeout."""
    try:
        return process.wait(timeout_seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class ForkedRuns:
    """Trains runs without torchrun, on ranks that are forked from a process that has loaded DeepSpeed."""

    def __init__(self, server: "ForkServer", data_home: Path):
        self.server, self.data_home = server, data_home

    def end(self, run: RunDir, ranks: int = 1, data_home: Path | None = None) -> "Ended":
        """Run the ranks of the newest job and return how they ended."""
        job = run.newest_job()
        assert job is not None
        return self.server.run(
            ranks,
            "nbtrain.train.__main__:main",
            [str(run.path)],
            log=job.path / "logs" / "{rank}.0.log",
            environment={"NBTRAIN_DATA": str(data_home or self.data_home), "NBTRAIN_JOB": job.job_id},
            timeout_seconds=TIMEOUT_SECONDS,
        )

    def train(self, run: RunDir, ranks: int = 1, data_home: Path | None = None) -> str:
        """Train the run to its end and return the log of rank 0."""
        ended = self.end(run, ranks, data_home)
        assert ended.succeeded, ended.last_output(40)
        return log_of(run)

    def stop_at(self, run: RunDir, step: int, ranks: int = 1) -> int:
        """Train until rank 0 receives SIGTERM during `step`, and return the step of the newest checkpoint."""
        order_faults(run, {"step": step, "do": "kill", "rank": 0, "signal": int(signal.SIGTERM)})
        self.train(run, ranks)
        return max(run.checkpoint_steps())


def log_of(run: RunDir) -> str:
    job = run.newest_job()
    assert job is not None
    return job.log(0, 0).read_text()


def trace(run: RunDir) -> dict[int, tuple[str, str]]:
    """Return {step: (loss, gradient norm)} as hexadecimal floats from all jobs of the run; the newest values
    of a step count.
    """
    steps = {}
    for job_id in run.job_ids():
        for event in read_events(run.job(job_id)):
            if event["kind"] == "trace":
                steps[event["step"]] = (event["loss"], event["grad_norm"])
    return steps


def losses(run: RunDir) -> list[float]:
    return [float.fromhex(loss) for _, (loss, _) in sorted(trace(run).items())]


def manifest(run: RunDir, step: int) -> dict[str, Any]:
    return json.loads(run.checkpoint_manifest(step).read_text())
