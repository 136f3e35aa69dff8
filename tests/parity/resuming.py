"""A run that is interrupted three times, each time in another way, equals an uninterrupted run bit for bit.

    SIGTERM to one rank in the middle of a step      all ranks save and stop in order
    SIGKILL of one rank in the middle of a step      the others follow; the newest checkpoint is an older one
    SIGKILL of one rank while it writes a checkpoint the torn checkpoint is skipped

The rank, the step, the point in the step and the file are drawn at random, seeded with the case's name.
Dropout is on, so the resumed job must also continue its random numbers.
"""

import random
import signal
from dataclasses import dataclass

from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.proof.fork_client import Ended
from tests.parity.cases import Case
from tests.parity.runner import Job, RunFailed, Runner, contents
from tests.train import launch

STEPS, INTERVAL = 9, 3
OVERRIDES = {
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "batch.train_tokens": None,
    "batch.train_steps": STEPS,
    "checkpoint.save_interval_steps": INTERVAL,
    "checkpoint.keep_last": STEPS,
    "evaluation.eval_interval_steps": 4,
}


@dataclass(frozen=True)
class Resumed:
    """How a run was interrupted, and how much was compared with the uninterrupted run and found equal."""

    interruptions: list[str]
    steps: int
    """Number of steps whose loss and gradient norm were compared; a step that was trained twice counts
    twice.
    """
    tensors: int
    """Number of parameters whose weight, master weight and moments have equal SHA-256 hashes in the last
    checkpoint.
    """


def resumed(runner: Runner, case: Case) -> Job[Resumed]:
    """Interrupt and resume a run. Raises AssertionError or RunFailed if it differs from the uninterrupted
    run.
    """
    draw = random.Random(case.name)
    straight = runner.make_run(case, f"{case.name}-straight", OVERRIDES)
    yield from runner.train(straight, case)
    cut = runner.make_run(case, f"{case.name}-cut", OVERRIDES)
    interruptions = []

    rank, step, beats = draw.randrange(case.ranks), draw.randint(1, 2), draw.randint(1, 3)
    hit = "tests.parity.suffering:hit"
    ended = yield runner.start(
        cut, case.ranks, hit, int(signal.SIGTERM), rank, step, beats, linger_seconds=60.0
    )
    _expect(ended, [0] * case.ranks)
    stopped_at = max(cut.checkpoint_steps())
    assert step < stopped_at < STEPS, f"SIGTERM after step {step}: stopped at step {stopped_at}"
    interruptions.append(f"SIGTERM to rank {rank} after step {step}, stopped at step {stopped_at}")

    newest = stopped_at
    rank, step, beats = draw.randrange(case.ranks), draw.randint(newest, 6), draw.randint(1, 3)
    launch.new_job(cut)
    ended = yield runner.start(
        cut, case.ranks, hit, int(signal.SIGKILL), rank, step, beats, linger_seconds=1.0
    )
    _expect_killed(ended, rank)
    interruptions.append(f"kill -9 of rank {rank} after step {step}")
    _assert_certified(cut, newest)

    # The kill may have torn a save in the background.
    newest = newest_checkpoint_step(cut) or 0
    torn = next(step for step in range(newest + 1, STEPS + 1) if step % INTERVAL == 0 or step == STEPS)
    # Under ZeRO every rank writes at least one file, otherwise only rank 0. Rank 0 writes the model, under
    # ZeRO its part of the optimizer, and the manifest.
    rank = draw.randrange(case.ranks) if case.zero else 0
    file = draw.randint(1, 3 if case.zero else 2) if rank == 0 else 1
    launch.new_job(cut)
    ended = yield runner.start(
        cut, case.ranks, "tests.parity.suffering:killed_in_save", rank, torn, file, linger_seconds=1.0
    )
    _expect_killed(ended, rank)
    interruptions.append(
        f"kill -9 of rank {rank} while it writes file {file} of the checkpoint of step {torn}"
    )
    _assert_certified(cut, newest)

    launch.new_job(cut)
    yield from runner.train(cut, case)
    _assert_certified(cut, newest)
    return Resumed(interruptions, *_assert_equal(straight, cut))


def _expect(ended: Ended, codes: list[int]) -> None:
    if ended.exit_codes != codes:
        raise RunFailed(f"exit codes {ended.exit_codes} instead of {codes}\n{ended.last_output(30)}")


def _expect_killed(ended: Ended, rank: int) -> None:
    if ended.exit_codes[rank] != -signal.SIGKILL or ended.timed_out:
        raise RunFailed(f"rank {rank} was to be killed: {ended.exit_codes}\n{ended.last_output(30)}")


def _assert_certified(run: RunDir, step: int) -> None:
    """Assert that the newest job continued from `step`, and that its resume report says "bit-exact"."""
    job = run.newest_job()
    certificate = ResumeCertificate.read(job.resume_json)
    assert certificate is not None, f"{run.name}: {job.job_id} has no certificate"
    assert (certificate.step, certificate.kind) == (step, "bit-exact"), f"{run.name}: {certificate}"


def _assert_equal(straight: RunDir, cut: RunDir) -> tuple[int, int]:
    """Compare two runs and return the number of (steps, parameters) compared. Raises AssertionError at the
    first difference.
    """
    expected = launch.trace(straight)
    assert sorted(expected) == list(range(1, STEPS + 1))
    made = [
        event
        for job_id in cut.job_ids()
        for event in read_events(cut.job(job_id))
        if event["kind"] == "trace"
    ]
    for event in made:
        step = event["step"]
        assert (event["loss"], event["grad_norm"]) == expected[step], (
            f"{cut.name}: step {step}: loss, norm {event['loss']}, {event['grad_norm']} instead of "
            f"{expected[step]}"
        )
    assert {event["step"] for event in made} == set(expected)
    ours, theirs = contents(cut.checkpoint(STEPS)), contents(straight.checkpoint(STEPS))
    different = [name for name in theirs if ours.get(name) != theirs[name]]
    assert not different, f"{cut.name}: other contents of {different}"
    return len(made), len(theirs)


def resume_cases() -> list[Case]:
    """Return cases for every ZeRO stage, every layout, and every other choice that keeps state between
    steps.
    """
    cases = [Case(dp=dp, zero=zero) for dp in (1, 2) for zero in (0, 1, 2, 3)]
    cases += [Case(tp=2, zero=zero) for zero in (1, 2, 3)]
    cases += [Case(tp=2, sp=True, dp=2, zero=zero) for zero in (1, 2, 3)]
    cases += [Case(pp=2), Case(pp=2, dp=2), Case(pp=4), Case(tp=2, pp=2), Case(tp=2, sp=True, pp=2, dp=2)]
    cases += [Case(us=2, zero=zero) for zero in (0, 1, 2, 3)]
    cases += [Case(us=2, dp=2, zero=2), Case(dp=4, zero=3, hpz=2)]
    cases += [Case(tp=2, sp=True, us=2, zero=zero) for zero in (0, 1, 2, 3)]
    cases += [Case(pp=2, us=2), Case(tp=2, sp=True, pp=2, us=2), Case(tp=2, pp=2, us=2, zero=0)]
    cases += [Case(tp=2, us=2, precision="bf16", data="packed"), Case(pp=2, us=2, recompute="every2")]
    cases += [Case(cp=2, zero=zero) for zero in (0, 1, 2, 3)]
    cases += [Case(tp=2, sp=True, cp=2, zero=3), Case(pp=2, cp=2), Case(tp=2, sp=True, pp=2, cp=2, zero=0)]
    cases += [Case(tp=2, cp=2, precision="bf16", data="packed"), Case(cp=2, model="all", recompute="full")]
    cases += [Case(dp=2, zero=zero, offload="optimizer") for zero in (1, 2, 3)]
    cases += [Case(dp=2, zero=3, offload="both"), Case(tp=2, pp=2, offload="optimizer")]
    cases += [Case(dp=2, zero=zero, precision="bf16") for zero in (1, 2, 3)]
    cases += [Case(dp=2, zero=zero, precision="bf16", offload="optimizer") for zero in (1, 2, 3)]
    cases += [Case(tp=2, sp=True, pp=2, precision="bf16"), Case(us=2, zero=3, precision="bf16")]
    cases += [Case(dp=2, zero=2, precision="autocast")]
    cases += [Case(dp=2, zero=2, data=data) for data in ("documents", "masked", "packed", "ramp")]
    cases += [Case(pp=2, data="ramp"), Case(tp=2, sp=True, data="packed"), Case(us=2, data="masked")]
    cases += [Case(tp=2, sp=True, dp=2, recompute=recompute) for recompute in ("selective", "full")]
    cases += [Case(pp=2, recompute="every2")]
    background = {"checkpoint.async_save": True}
    for layout in ({"dp": 2, "zero": 2}, {"dp": 2, "zero": 3}, {"tp": 2, "pp": 2}, {"us": 2, "zero": 1}):
        cases.append(Case(**layout, precision="bf16", extra=background, note="async"))
    cases.append(Case(dp=2, extra={"data.num_workers": 1}, note="workers"))
    with_all_fields = (
        {"zero": 0},
        {"dp": 2, "zero": 3},
        {"tp": 2, "sp": True, "dp": 2, "zero": 2},
        {"pp": 2},
        {"us": 2},
    )
    cases += [Case(**layout, model="all") for layout in with_all_fields]
    muon = (
        {"zero": 0},
        {"dp": 2, "zero": 1, "precision": "bf16"},
        {"dp": 2, "zero": 3},
        {"tp": 2, "sp": True, "dp": 2, "zero": 2},
        {"pp": 2, "precision": "bf16", "extra": background, "note": "async"},
        {"us": 2, "zero": 3},
    )
    cases += [Case(**layout, optimizer="muon") for layout in muon]
    return cases


def resume_cases_of_ci() -> list[Case]:
    """Return two cases that together have every kind of parallelism but Ulysses, both optimizers and both
    ways of saving. `make parity` has the others.
    """
    background = {"checkpoint.async_save": True}
    return [
        Case(dp=2, zero=3, precision="bf16", data="ramp", optimizer="muon"),
        Case(tp=2, sp=True, pp=2, precision="bf16", data="packed", extra=background, note="async"),
    ]
