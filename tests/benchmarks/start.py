"""Seconds from `nbtrain submit` to a run's first step, and from the death of its rank to the next step.

    python tests/benchmarks/start.py [--old FOLDER] [--rounds 12]

`--old` is the root of another version of this repository, such as an unpacked `git archive`; it runs with the
same Python and packages, in turn with this one. The run has one rank on the CPU and a model of two layers, so
that its steps take no time, and saves every second step. Data and tokenizer are prepared before. A step has
ended when it is in the log. The rank is killed (SIGKILL) after its tenth step; the supervisor restarts it
from the newest checkpoint, at once (backend.restart_backoff_seconds: 0; the default is to wait 5 s first).
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).absolute().parents[2]
RUN = """
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 32}
tokenizer: {name: mock, vocab_size: 384}
data: {name: mock, split: "80,10,10", sources: [{kind: mock, num_documents: 300}]}
batch: {micro_batch_size: 2, global_batch_size: 2, train_tokens: 64000000}
lr_schedule: {lr: 1.0e-3, lr_warmup_tokens: 128}
precision: {dtype: fp32}
checkpoint: {save_interval_steps: 2}
evaluation: {eval_interval_steps: 1000000}
logging: {log_interval_steps: 1}
resources: {device: cpu}
backend: {restart_backoff_seconds: 0}
"""
KILLED_AFTER_STEPS = 10
TIMEOUT_SECONDS = 120.0
STEP = re.compile(r"\bstep +\d+ \| ")


class Version:
    """A version of nbtrain with its own workspace."""

    def __init__(self, title: str, root: Path, workspace: Path):
        self.title, self.workspace = title, workspace
        workspace.mkdir()
        self.variables = {**os.environ, "PYTHONPATH": str(root), "NBTRAIN_WORKSPACE": str(workspace)}
        # `python -m` finds the version in the current folder first.
        self.root = root
        self.started: list[float] = []
        self.restarted: list[float] = []

    def call(self, *words: str) -> None:
        """Run a verb of this version to its end."""
        subprocess.run(
            [sys.executable, "-m", "nbtrain.cli", *words],
            cwd=self.root,
            env=self.variables,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def write_run(self, name: str) -> str:
        path = self.workspace / f"{name}.yaml"
        path.write_text(f"name: {name}\n{RUN}")
        return str(path)

    def measure(self, number: int) -> None:
        """Start a run, kill its rank, and cancel it once it has continued."""
        name = f"run{number}"
        yaml, run = self.write_run(name), self.workspace / "output" / name
        began = time.monotonic()
        self.call("submit", yaml)
        try:
            wait_for(run, 0, 1)
            self.started.append(time.monotonic() - began)
            wait_for(run, 0, KILLED_AFTER_STEPS)
            (beat,) = run.glob("jobs/*/heartbeat/0.json")
            os.kill(json.loads(beat.read_text())["process"]["pid"], signal.SIGKILL)
            began = time.monotonic()
            wait_for(run, 1, 1)
            self.restarted.append(time.monotonic() - began)
        finally:
            self.call("cancel", name)
            wait_for_end(run)


def wait_for(run: Path, attempt: int, steps: int) -> None:
    """Wait until an attempt of the job has logged so many steps."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if any(
            len(STEP.findall(log.read_text())) >= steps for log in run.glob(f"jobs/*/logs/*0.{attempt}.log")
        ):
            return
        time.sleep(0.01)
    raise SystemExit(f"{run}: no {steps} steps after {TIMEOUT_SECONDS:g} s")


def wait_for_end(run: Path) -> None:
    """Wait until the job has ended, so that it takes no time of the next one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if all(json.loads(job.read_text())["state"] == "CANCELLED" for job in run.glob("jobs/*/job.json")):
            return
        time.sleep(0.1)
    raise SystemExit(f"{run}: still runs after {TIMEOUT_SECONDS:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        versions = [Version("this version", REPOSITORY, Path(folder) / "this")]
        if options.old:
            versions.append(Version("old", options.old.resolve(), Path(folder) / "old"))
        for version in versions:
            version.call("prepare", version.write_run("prepared"))
        for number in range(options.rounds):
            for version in versions if number % 2 else reversed(versions):
                version.measure(number)
            print(f"round {number + 1} of {options.rounds} done, load {os.getloadavg()[0]:.1f}", flush=True)
    print("\n| version | submit to the first step, s | death to the next step, s |\n| --- | --- | --- |")
    for version in versions:
        print(f"| {version.title} | {spread(version.started)} | {spread(version.restarted)} |")


def spread(seconds: list[float]) -> str:
    """Return "median (least to most)"."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
