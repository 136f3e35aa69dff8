"""Seconds from `nbtrain submit` to a run's first step, and from the death of its rank to the next step.

    python tests/benchmarks/start.py [--old FOLDER] [--rounds 12]

`--old` is the root of another version of this repository, such as an unpacked `git archive`; it runs with the
same Python and packages, in turn with this one. The run has one rank on the CPU and a model of two layers, so
that its steps take no time, and saves every second step. Data and tokenizer are prepared before. A step has
ended when it is in the log. The rank is killed (SIGKILL) after its tenth step; the supervisor restarts it
from the newest checkpoint.

The lower bound is a Python process that only imports torch and DeepSpeed. The peer is one that also joins a
process group of one rank, and trains one step of two linear layers with DeepSpeed's engine. Modules are
compiled in advance, as pip does; the first round compiles them and is not counted. CPU seconds are
counted for all processes of the run, and for `nbtrain submit` before the first step.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nbtrain.base.process.ports import port_to_listen_on

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
"""
IMPORTS = "import torch, deepspeed"
BARE = """
import torch, deepspeed
deepspeed.ops.__compatible_ops__ = {}  # as in a run: otherwise DeepSpeed looks for compilers
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
settings = {"train_batch_size": 2}
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
engine.backward(engine(torch.ones(2, 64)).sum())
engine.step()
"""
KILLED_AFTER_STEPS = 10
TIMEOUT_SECONDS = 120.0
STEP = re.compile(r"\bstep +\d+ \| ")


class Taken(NamedTuple):
    """Time that a start took."""

    seconds: float
    cpu_seconds: float


class Version:
    """A version of nbtrain with its own workspace."""

    def __init__(self, title: str, root: Path, workspace: Path):
        self.title, self.workspace = title, workspace
        workspace.mkdir()
        compiled = {"PYTHONPYCACHEPREFIX": str(workspace / "compiled")}
        self.variables = {
            **os.environ,
            "PYTHONPATH": str(root),
            "NBTRAIN_WORKSPACE": str(workspace),
            **compiled,
        }
        self.variables.pop("PYTHONDONTWRITEBYTECODE", None)
        # `python -m` finds the version in the current folder first.
        self.root = root
        self.started: list[Taken] = []
        self.restarted: list[Taken] = []

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
        began, before = time.monotonic(), children_cpu_seconds()
        self.call("submit", yaml)
        try:
            wait_for(run, 0, 1)
            cpu_seconds = run_cpu_seconds(run) + children_cpu_seconds() - before
            self.started.append(Taken(time.monotonic() - began, cpu_seconds))
            wait_for(run, 0, KILLED_AFTER_STEPS)
            (beat,) = run.glob("jobs/*/heartbeat/0.json")
            pid, before = json.loads(beat.read_text())["process"]["pid"], run_cpu_seconds(run)
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            wait_for(run, 1, 1)
            self.restarted.append(Taken(time.monotonic() - began, run_cpu_seconds(run) - before))
        finally:
            self.call("cancel", name)
            wait_for_end(run)


def children_cpu_seconds() -> float:
    """Return the CPU seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_cpu_seconds(run: Path) -> float:
    """Return the CPU seconds of the processes of a run, and of those that they have waited for."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(run) in (process / "cmdline").read_bytes():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                # proc(5): utime, stime, cutime and cstime are the fields 14 to 17.
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def python_seconds(code: str, variables: dict[str, str]) -> Taken:
    """Return the time of a Python process with this code, which may be rank 0 of one."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_to_listen_on(""))}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu", **address}
    began, before = time.monotonic(), children_cpu_seconds()
    subprocess.run([sys.executable, "-c", code], env=variables | rank, check=True, capture_output=True)
    return Taken(time.monotonic() - began, children_cpu_seconds() - before)


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
        peers: dict[str, list[Taken]] = {IMPORTS: [], BARE: []}
        for number in range(options.rounds + 1):
            for version in versions if number % 2 else reversed(versions):
                version.measure(number)
            for code, seconds in peers.items():
                seconds.append(python_seconds(code, versions[0].variables))
            print(f"round {number} of {options.rounds} done, load {os.getloadavg()[0]:.1f}", flush=True)
    rows = [(f"{version.title}: submit to the first step", version.started) for version in versions]
    rows += [(f"{version.title}: death to the next step", version.restarted) for version in versions]
    rows.append(("lower bound: import torch and DeepSpeed", peers[IMPORTS]))
    rows.append(("torch and DeepSpeed, one step of two layers", peers[BARE]))
    print("\n| | s | CPU s |\n| --- | --- | --- |")
    for title, taken in rows:
        elapsed, cpu = zip(*taken[1:], strict=True)
        print(f"| {title} | {spread(elapsed)} | {spread(cpu)} |")


def spread(seconds: Sequence[float]) -> str:
    """Return "median (least to most)"."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
