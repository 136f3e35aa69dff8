"""Training of cases on forked ranks, and comparison of the results with one process.

A job is a generator that yields launches and returns its result; a few jobs run at the same time. Every
launch forks new ranks, because DeepSpeed keeps state from one engine to the next, and forking takes less time
than a step.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files.torch_files import load_file
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes, state_bytes
from nbtrain.config.load import load_resolved
from nbtrain.proof.fork_client import Ended, ForkServer, Launch
from tests.parity.cases import Case
from tests.parity.oracle import Curve, curve
from tests.train import launch

TRAIN = "nbtrain.train.__main__:main"
TIMEOUT_SECONDS = 900.0
# Fields of a run: fields.Name.
NAME_LENGTH = 53
# Kinds of state that are first moments, in addition to exp_avg itself.
FIRST = {"momentum_buffer": "exp_avg"}

Found = TypeVar("Found")
Job = Generator[Launch, Ended, Found]


class RunFailed(Exception):
    """The ranks of a run ended in an unexpected way."""


def make_datasets(home: Path) -> None:
    """Create the datasets that the cases use: `test`, `short` (several documents in a sequence) and
    `packed`.
    """
    launch.make_dataset(home)
    launch.make_dataset(home, "short", document_tokens=(3, 20))
    launch.make_packed(home)


@dataclass(frozen=True)
class Deviation:
    """Deviation of a run from one process: the maximum over all steps or parameters."""

    loss: float
    grad_norm: float
    validation_loss: float
    weights: float
    """Largest deviation of a single weight at the end of training."""
    weights_mean: float
    """Mean deviation of the weights of one parameter, for the parameter in which it is largest."""
    exp_avg: float
    """Deviation of a parameter's first moment or Muon momentum, relative to its norm; a missing or wrongly
    scaled gradient shows here.
    """
    exp_avg_sq: float
    """Deviation of a parameter's second moment, relative to its norm."""

    def worst(self, other: "Deviation") -> "Deviation":
        """Return a deviation with the larger value of each field."""
        pairs = zip(asdict(self).values(), asdict(other).values())
        return Deviation(*(max(pair) for pair in pairs))


class Runner:
    """Trains named runs in folders below `root`; `home` is their data directory."""

    def __init__(self, server: ForkServer, root: Path, home: Path):
        self.server, self.root, self.home = server, root, home
        self._references: dict[tuple[str, ...], Curve] = {}

    # --- launches -----------------------------------------------------------------------------------------

    def make_run(self, case: Case, name: str, overrides: dict[str, Any] | None = None) -> RunDir:
        """Create a run's folder in the same way as submit. Raises ConfigError if its layout is not
        allowed.
        """
        return launch.make_run(self.root, {**case.overrides, **(overrides or {})}, self.run_dir(name).name)

    def run_dir(self, name: str) -> RunDir:
        """Return the folder of the run `name`; a name that is too long is shortened."""
        if len(name) > NAME_LENGTH:
            name = f"{name[: NAME_LENGTH - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return RunDir(self.root / "output" / name)

    def start(
        self,
        run: RunDir,
        ranks: int,
        function: str = TRAIN,
        *arguments: Any,
        **options: Any,
    ) -> Launch:
        """Start the ranks of the run's newest job."""
        job = run.newest_job()
        assert job is not None
        return self.server.start(
            ranks,
            function,
            [str(run.path), *arguments],
            log=job.path / "logs" / "{rank}.0.log",
            environment={"NBTRAIN_DATA": str(self.home), "NBTRAIN_JOB": job.job_id},
            sys_path=[launch.REPOSITORY],
            timeout_seconds=TIMEOUT_SECONDS,
            **options,
        )

    def train(self, run: RunDir, case: Case) -> Job[None]:
        """Train the run to its end. Raises RunFailed with the last lines of the log."""
        # DeepSpeed guesses which processors can compute in fp16; torch computes without their instructions,
        # slowly.
        function = "tests.parity.worker:main" if case.precision == "fp16" else TRAIN
        ended = yield self.start(run, case.ranks, function)
        if not ended.succeeded:
            raise RunFailed(f"{run.name}: exit codes {ended.exit_codes}\n{ended.last_output(30)}")

    def run(self, job: Job[Found]) -> Found:
        """Run a single job to its end and return its result."""
        state = self._advance(job, None)
        while isinstance(state, Launch):
            state = self._advance(job, self.server.wait(state))
        return state[0]

    def finish(
        self, jobs: Iterable[tuple[str, Job[Found]]], at_once: int = 2
    ) -> Iterator[tuple[str, Found | str]]:
        """Run all jobs, `at_once` at a time, and yield (name, result) of each. A job that failed has the
        reason as its result.
        """
        waiting, running = iter(jobs), []
        while True:
            while len(running) < at_once and (entry := next(waiting, None)) is not None:
                name, job = entry
                running.append((name, job, self._advance_or_tell(job, None)))
            if not running:
                return
            name, job, state = running.pop(0)
            if isinstance(state, Launch):
                running.append((name, job, self._advance_or_tell(job, self.server.wait(state))))
            else:
                yield name, state[0]

    def _advance_or_tell(self, job: Job[Found], ended: Ended | None) -> Launch | tuple[Found | str]:
        try:
            return self._advance(job, ended)
        except (RunFailed, AssertionError, NbtrainError) as error:
            return (f"{type(error).__name__}: {error}",)

    @staticmethod
    def _advance(job: Job[Found], ended: Ended | None) -> Launch | tuple[Found]:
        try:
            return job.send(ended)  # type: ignore[arg-type]
        except StopIteration as end:
            return (end.value,)

    # --- comparison with one process ----------------------------------------------------------------------

    def reference(self, data: str, model: str = "gpt", optimizer: str = "adamw") -> Curve:
        """Return the curve of one process for this data, model and optimizer."""
        key = (data, model, optimizer)
        if key not in self._references:
            overrides = Case(data=data, model=model, optimizer=optimizer, zero=0).overrides
            run = launch.make_run(self.root, overrides, f"reference-{'-'.join(key)}")
            with _environment("NBTRAIN_DATA", str(self.home)):
                self._references[key] = curve(load_resolved(run.config_yaml))
        return self._references[key]

    def parity(self, case: Case) -> Job[Deviation]:
        """Train the case and return its deviation from one process."""
        run = self.make_run(case, case.name)
        yield from self.train(run, case)
        check_size(run)
        return deviation(run, self.reference(case.data, case.model, case.optimizer))

    def autotp(self, case: Case) -> Job[tuple[float, float]]:
        """Return the largest differences in (loss, gradient norm) between DeepSpeed's own tensor parallelism
        and ours.

        `case` has a layout and ZeRO stage that both support, and must have been trained before.
        """
        run = self.make_run(case, f"{case.name}-autotp")
        answer = run.path / "autotp.json"
        ended = yield self.start(run, case.ranks, "tests.parity.autotp:main", str(answer))
        if not ended.succeeded:
            raise RunFailed(f"{run.name}: exit codes {ended.exit_codes}\n{ended.last_output(30)}")
        theirs = np.array(json.loads(answer.read_text()))
        ours = values(self.run_dir(case.name), range(1, len(theirs) + 1))
        loss, norm = (float(np.abs(ours[index] - theirs[:, index]).max()) for index in (0, 1))
        return loss, norm


def check_size(run: RunDir) -> None:
    """Raise AssertionError unless the newest checkpoint has the size in bytes that checkpoint_bytes.py
    predicts.
    """
    step, config = max(run.checkpoint_steps()), load_resolved(run.config_yaml)
    entries = launch.manifest(run, step)["files"]
    held = sum(_tensor_bytes(load_file(run.checkpoint(step) / name, mmap=True)) for name in entries)
    # ZeRO pads its flat buffers by a few elements for each group and rank; Adam's step is a tensor too.
    padding = 1024 + 256 * config.world_size
    assert 0 <= held - state_bytes(config) <= padding, f"{run.name}: {held:,} bytes of tensors"
    written, reckoned = sum(entry["bytes"] for entry in entries.values()), checkpoint_bytes(config)
    assert written <= reckoned <= 1.1 * written, f"{run.name}: {written:,} bytes, {reckoned:,} reckoned"


def _tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors except the random states, which are part of the trainer's state."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(_tensor_bytes(entry) for key, entry in value.items() if key != "nbtrain")
    return sum(map(_tensor_bytes, value)) if isinstance(value, list | tuple) else 0


def deviation(run: RunDir, reference: Curve) -> Deviation:
    """Return how far a finished run deviates from a reference curve."""
    steps = len(reference.losses)
    step = max(run.checkpoint_steps())
    assert step == steps, f"{run.name} ended at step {step}"
    losses, norms = values(run, range(1, steps + 1))
    validation = [event["loss"] for event in read_events(run.newest_job()) if event["kind"] == "validation"]
    assert len(validation) == len(reference.validation_losses), f"{run.name}: {len(validation)} validations"
    store = CheckpointStore(run.checkpoint(step))
    assert sorted(store.parameters) == sorted(reference.weights), f"{run.name}: {sorted(store.parameters)}"
    found = {"fp32": [], "mean": [], "exp_avg": [], "exp_avg_sq": []}
    for name, expected in reference.weights.items():
        assert store.step(name) == steps, f"{run.name}: {name} is at step {store.step(name)}"
        difference = (store.full(name)[: len(expected)] - expected).abs()
        found["fp32"].append(float(difference.max()))
        found["mean"].append(float(difference.mean()))
        for kind in store.parameters[name].states[1:]:
            ours, theirs = store.full(name, kind)[: len(expected)], reference.moments[kind][name]
            found[FIRST.get(kind, kind)].append(float((ours - theirs).norm() / theirs.norm()))
    worst = [max(entries) for entries in found.values()]
    return Deviation(
        float(np.abs(losses - reference.losses).max()),
        float(np.abs(norms - reference.grad_norms).max()),
        float(np.abs(np.array(validation) - reference.validation_losses).max()),
        *worst,
    )


def values(run: RunDir, steps: range) -> tuple[np.ndarray, np.ndarray]:
    """Return (losses, gradient norms) of these steps. Fails if the run did not train one of them."""
    trace = launch.trace(run)
    missing = [step for step in steps if step not in trace]
    assert not missing, f"{run.name}: no trace of steps {missing}"
    losses, norms = ([float.fromhex(trace[step][index]) for step in steps] for index in (0, 1))
    return np.array(losses), np.array(norms)


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each parameter's state in a checkpoint of any layout, excluding the vocabulary's
    padding.
    """
    store, hashes = CheckpointStore(folder), {}
    for name in store.parameters:
        rows = store.vocab_size if name in ("word_embeddings.weight", "output_layer.weight") else None
        states = store.parameters[name].states
        parts = [store.full(name, state)[:rows] for state in states] + [store.weights(name)[:rows]]
        digest = hashlib.sha256(f"{store.step(name)}".encode())
        for part in parts:
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        hashes[name] = digest.hexdigest()
    return hashes


def exceeds(found: Deviation, case: Case) -> str:
    """Describe the deviations that are larger than the case's tolerance allows; "" if there are none."""
    allowed = case.tolerance
    exceeded = [
        f"{entry.name} {getattr(found, entry.name):.2g} > {getattr(allowed, entry.name):g}"
        for entry in fields(Deviation)
        # Compared this way round, so that NaN exceeds everything.
        if not getattr(found, entry.name) <= getattr(allowed, entry.name)
    ]
    return ", ".join(exceeded)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
