"""Training runs of a step, each in a separate process that has already loaded torch.

One process for several runs would not show the memory of a single run, and a new process for each run would
spend most of its time on imports. So the next processes load in advance (tests/gpu/warm.py), on the CPU
alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.base.run_directory.rundir import RunDir
from tests.gpu.cases import Impossible, Place
from tests.train import launch

LOADED_AHEAD = 2
LIMIT_SECONDS = 300.0
OUT_OF_MEMORY = "out of memory"


class TrainingFailed(Exception):
    """Raised if a rank fails; the message is the rank's error."""


@dataclass
class Trained:
    """A finished run, with the values that were measured during training."""

    run: RunDir
    found: dict[str, Any]

    @property
    def losses(self) -> list[float]:
        return launch.losses(self.run)

    @property
    def norms(self) -> list[float]:
        return [float.fromhex(norm) for _, (_, norm) in sorted(launch.trace(self.run).items())]


class Trainings:
    """Creates runs in place.folder and trains them one at a time."""

    def __init__(self, place: Place):
        self.place, self.ahead = place, LOADED_AHEAD if place.on_gpu else 0
        self.root = place.folder / f"runs-{os.getpid()}"
        self.data = self.root / "data"
        self._waiting: list[subprocess.Popen] = []
        self._made = 0

    def dataset(self, name: str, documents: int, document_tokens: tuple[int, int], vocab_size: int) -> str:
        """Create a dataset of random walks, once, and return its name."""
        if not (self.data / "dataset" / name).exists():
            launch.make_dataset(self.data, name, documents, document_tokens, vocab_size)
        return name

    def make(
        self, name: str, overrides: dict[str, Any], source: str | None = None, trace: bool = True
    ) -> RunDir:
        """Create a run directory from the small run of tests/train/launch.py, or from a run YAML. Raises
        ConfigError.

        `name` may be any text: the run's name has its letters and digits, and a number. With `trace`, the
        loss of every step is recorded, which makes the host wait for the device.
        """
        self._made += 1
        letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
        device = {
            "resources.device": self.place.device,
            "resources.nodes": 1,
            "resources.gpus_per_node": overrides.get("parallel.data_parallel_size", 1)
            if self.place.on_gpu
            else 0,
        }
        called = f"{letters[:40]}-{self._made}"
        return launch.make_run(self.root, {**device, **overrides}, called, source, trace)

    def train(self, run: RunDir, watch: str = "", device: str | None = None) -> Trained:
        """Train one rank in a process that has already loaded torch; `watch` is a class in
        tests/gpu/watch.py.

        Raises TrainingFailed.
        """
        process, log, order = self._next(device or self.place.device), _log(run), self.order(run, watch)
        assert process.stdin is not None
        try:
            process.stdin.write((json.dumps(order) + "\n").encode())
            process.stdin.close()
        except BrokenPipeError as error:
            raise TrainingFailed(
                f"the process ended before its turn: {_last_output(self._own_log())}"
            ) from error
        _wait(process, log)
        found = files.read_json(Path(order["answer"]))
        if process.returncode or found is None:
            raise TrainingFailed(_error_of(log, process.returncode))
        return Trained(run, found)

    def order(self, run: RunDir, watch: str) -> dict[str, Any]:
        """Return the order for warm.py."""
        answer, environment = run.path / "answer.json", self._environment(run)
        log = str(_log(run))
        return {
            "run": str(run.path),
            "answer": str(answer),
            "log": log,
            "watch": watch,
            "environment": environment,
        }

    def train_on_all(self, run: RunDir, ranks: int) -> Trained:
        """Train several ranks with torchrun.

        Raises Impossible if there are too few GPUs, and TrainingFailed if a rank fails.
        """
        if self.place.on_gpu and ranks > self.place.gpus:
            raise Impossible(f"needs {ranks} GPUs, and this machine has {self.place.gpus}")
        environment = self._environment(run)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", environment["MASTER_PORT"]]
        kept = {name: environment[name] for name in ("NBTRAIN_DATA", "NBTRAIN_JOB", "OMP_NUM_THREADS")}
        log = _log(run)
        with log.open("ab") as stream:
            # In this session, which ends with the step.
            process = subprocess.Popen(
                [*command, "-m", "nbtrain.train", str(run.path)],
                env={**os.environ, **kept},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        _wait(process, log)
        if process.returncode:
            raise TrainingFailed(_error_of(log, process.returncode))
        return Trained(run, {})

    def _next(self, device: str) -> subprocess.Popen:
        if device != self.place.device:
            return self._start(device)
        while len(self._waiting) < self.ahead + 1:
            self._waiting.append(self._start(device))
        return self._waiting.pop(0)

    def _start(self, device: str) -> subprocess.Popen:
        self.root.mkdir(parents=True, exist_ok=True)
        with self._own_log().open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.warm", device],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
            )

    def _own_log(self) -> Path:
        return self.root / "warm.log"

    def _environment(self, run: RunDir) -> dict[str, str]:
        job = run.newest_job()
        assert job is not None
        return {
            "NBTRAIN_DATA": str(self.data),
            "NBTRAIN_JOB": job.job_id,
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port_to_listen_on()),
            "OMP_NUM_THREADS": str(max(1, min(8, len(os.sched_getaffinity(0)) // 2 // self.place.at_once))),
        }


def _log(run: RunDir) -> Path:
    job = run.newest_job()
    assert job is not None
    path = job.log(0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _wait(process: subprocess.Popen, log: Path) -> None:
    """Wait for the process to end; after LIMIT_SECONDS kill it and raise TrainingFailed."""
    try:
        process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        # torchrun passes a SIGTERM on to its ranks; a single rank needs no more.
        process.send_signal(signal.SIGTERM)
        time.sleep(2)
        process.kill()
        process.wait()
        raise TrainingFailed(f"not done within {LIMIT_SECONDS:g} s: {_last_output(log)}") from None


def _error_of(log: Path, code: int | None) -> str:
    """Return the line of a log that names the error, or the log's last lines."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    named = [line.strip() for line in lines if "Error: " in line or "Exception: " in line]
    if named:
        # The last frame's error is raised last; torchrun adds its own after it.
        own = [line for line in named if "ChildFailedError" not in line]
        return (own or named)[-1][:600]
    return f"exit code {code}: {_last_output(log)}"


def _last_output(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " / ".join(line.strip() for line in lines[-4:])[-600:] or "nothing was said"
