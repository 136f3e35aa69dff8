"""Checkpoints that are written in one layout and loaded in another: their contents stay the same, and the
loss curve continues.

Before its first step, the second layout saves the state that it has loaded. The master weight, moments and
Adam step of every parameter must equal the first layout's byte for byte, except for the vocabulary's padding,
which depends on the layout. In fp32, the steps after the load are compared with one process.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load_resolved, to_yaml
from tests.parity.cases import STEPS, Case
from tests.parity.runner import Job, RunFailed, Runner, contents, values
from tests.train import launch

AT = 5
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}
OVERRIDES = {"checkpoint.keep_last": STEPS}


@dataclass(frozen=True)
class Reshaped:
    """The result of continuing a checkpoint in another layout, after its contents were found to be
    byte-equal.
    """

    loss: float
    """Largest deviation of the loss after the load, compared with one process (in bf16: with the run that
    wrote the checkpoint).
    """
    grad_norm: float
    tensors: int
    """Number of parameters whose weight, master weight, moments and step were compared."""


def first_half(runner: Runner, case: Case) -> Job[RunDir]:
    """Train a run in the layout of `case` to its end, with a checkpoint at step AT."""
    run = runner.make_run(case, f"{case.name}-first", OVERRIDES | {"checkpoint.save_interval_steps": AT})
    yield from runner.train(run, case)
    return run


def reshaped(runner: Runner, first: RunDir, case: Case) -> Job[Reshaped]:
    """Continue the checkpoint of `first` in the layout of `case`, and compare the results."""
    name = f"{first.name}-to-{case.name}"
    run, copy = (runner.make_run(case, f"{name}{suffix}", OVERRIDES) for suffix in ("", "-copy"))
    shutil.copytree(first.checkpoint(AT), run.checkpoint(AT))
    found = yield from _continue(runner, run, copy, case, AT)
    losses, norms = values(run, range(AT + 1, STEPS + 1))
    if case.precision == "fp32":
        reference = runner.reference(case.data, case.model, case.optimizer)
        expected = reference.losses[AT:], reference.grad_norms[AT:]
    else:
        expected = values(first, range(AT + 1, STEPS + 1))
    shutil.rmtree(run.model)
    shutil.rmtree(copy.model)
    loss, norm = (float(np.abs(ours - theirs).max()) for ours, theirs in zip((losses, norms), expected))
    assert loss <= LOSS_TOLERANCE[case.precision], f"{name}: the loss deviates by {loss:.2g}"
    return Reshaped(loss, norm, found)


def _continue(runner: Runner, run: RunDir, copy: RunDir, case: Case, step: int) -> Job[int]:
    """Load the checkpoint, save the loaded state in `copy`, and train. Return how many parameters are
    byte-equal in both.
    """
    before = contents(run.checkpoint(step))
    ended = yield runner.start(run, case.ranks, "tests.parity.suffering:reshaped", str(copy.path))
    if not ended.succeeded:
        raise RunFailed(f"{run.name}: exit codes {ended.exit_codes}\n{ended.last_output(30)}")
    after = contents(copy.checkpoint(step))
    different = [name for name in before if after.get(name) != before[name]]
    assert not different, f"{run.name}: other contents after loading of {different}"
    return len(before)


def chained(runner: Runner, cases: Sequence[Case], name: str) -> Job[Reshaped]:
    """Train the run `name` through all of `cases`, changing the layout after every step. All cases have the
    same precision.
    """
    precision = cases[0].precision
    # The last layout trains the remaining steps.
    ends = [*range(1, len(cases)), STEPS]
    assert len(cases) <= STEPS
    run = runner.make_run(cases[0], name, OVERRIDES)
    tensors = 0
    for number, (case, end) in enumerate(zip(cases, ends)):
        stops = OVERRIDES | ({"batch.max_steps": end} if end < STEPS else {})
        copy = runner.make_run(case, f"{name}-{number}", stops)
        files.write_text(run.config_yaml, to_yaml(load_resolved(copy.config_yaml)))
        if number == 0:
            yield from runner.train(run, case)
            continue
        launch.new_job(run)
        tensors += yield from _continue(runner, run, copy, case, ends[number - 1])
    losses, norms = values(run, range(1, STEPS + 1))
    store = CheckpointStore(run.checkpoint(STEPS))
    assert {store.step(parameter) for parameter in store.parameters} == {STEPS}
    reference = runner.reference(cases[0].data, cases[0].model, cases[0].optimizer)
    loss = float(np.abs(losses - reference.losses).max())
    assert loss <= LOSS_TOLERANCE[precision], f"{name}: the loss deviates by {loss:.2g}"
    return Reshaped(loss, float(np.abs(norms - reference.grad_norms).max()), tensors)


def reshape_cases() -> list[Case]:
    """Return one layout of each kind. A checkpoint of each is loaded in every other layout."""
    return [
        Case(zero=0),
        Case(dp=2),
        Case(dp=2, zero=2, offload="optimizer"),
        Case(dp=4, zero=3),
        Case(tp=2, sp=True, dp=2, zero=2),
        Case(tp=4, zero=3),
        Case(pp=2, dp=2),
        Case(pp=4),
        Case(tp=2, pp=2, dp=2),
        Case(us=2, zero=1),
        Case(us=2, dp=2, zero=3),
        Case(tp=2, us=2, zero=2),
        Case(pp=2, us=2),
        Case(tp=2, sp=True, pp=2, us=2),
        Case(tp=2, pp=2, us=2, zero=0),
        Case(tp=2, sp=True, cp=2, zero=2),
        Case(pp=2, cp=2),
    ]


def reshape_cases_all() -> list[Case]:
    """Return half of these layouts with a model that uses all fields of the layers; the tensor-parallel ranks
    share its only key-value group.
    """
    return [replace(case, model="all") for case in reshape_cases()[1::2]]


def reshape_cases_muon() -> list[Case]:
    """Return half of these layouts with the Muon optimizer, including every ZeRO stage and kind of layout."""
    cases = [replace(case, optimizer="muon", offload="none") for case in reshape_cases()]
    return [cases[index] for index in (0, 3, 4, 8, 10, 11)]


def reshape_cases_bf16() -> list[Case]:
    """Return the layouts that can train with bf16 weights."""
    return [replace(case, precision="bf16") for case in reshape_cases() if case.zero]


def turns(cases: Sequence[Case]) -> list[Case]:
    """Return the first STEPS cases in an order in which neighbors are far apart in the original list."""
    return [*cases[::2], *reversed(cases[1::2])][:STEPS]
