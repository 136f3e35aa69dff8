"""Training steps that go wrong: which stop the run, which are skipped without a trace, and which cause a
rollback.
"""

import json
import math
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from nbtrain.base.errors import LossScaleError, RollbackError, StabilityError
from nbtrain.base.run_directory.bad_steps import EFFECTS
from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.records import Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.rollbacks import pass_bad_samples, skipped_samples
from nbtrain.config.load import load
from nbtrain.config.sections.watch_section import StabilityConfig
from nbtrain.dataset.samples.state import DataState
from nbtrain.parallel.startup import World
from nbtrain.train.health.discard import discard_gradients
from nbtrain.train.health.stability import StepGuard
from nbtrain.train.training_step import smallest_scale_explained
from tests.train import launch

WORLD = World(0, 1, 0, torch.device("cpu"))


@pytest.fixture(scope="session")
def yaml(tmp_path_factory):
    path = tmp_path_factory.mktemp("stability") / "tiny.yaml"
    path.write_text(launch.TINY)
    return path


@pytest.fixture
def job(tmp_path):
    return RunDir(tmp_path / "run").job("20261121-031500-a1b2")


class Engine:
    """A stand-in for an engine, with one weight, an optimizer, and DeepSpeed's counters."""

    def __init__(self):
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.skipped_steps = self.global_steps = self.global_samples = 0

    def train_batch_size(self):
        return 4

    def zero_grad(self):
        self.module.weight.grad = None

    def _take_model_step(self, lr_kwargs=None):
        # A step of SGD. That of torch.optim loads torch's compiler, for seconds.
        self.module.weight.data -= self.module.weight.grad
        self.zero_grad()
        self.global_steps += 1


class Run:
    """A stability guard with a stand-in engine, to which the test passes losses and gradients."""

    def __init__(self, yaml, job, **settings):
        settings = {f"stability.{key}": value for key, value in settings.items()}
        self.config = load(yaml, settings, check=False)
        self.engine = Engine()
        self.guard = StepGuard(self.config, self.engine, WORLD, EventWriter(job, "rank0"))
        self.guard.install()
        self.steps = 0

    def step(self, loss, gradient=1.0, tokens_in_loss=None):
        self.steps += 1
        positions = (4 * self.steps - 4, 4 * self.steps)
        tokens = None if tokens_in_loss is None else torch.tensor(float(tokens_in_loss))
        self.guard.begin_step(self.steps, positions, lambda: torch.tensor(loss), lambda: tokens)
        self.engine.module.weight.grad = torch.tensor([[gradient]])
        norm = self.engine.module.weight.grad.norm()
        self.engine._take_model_step()
        return self.guard.end_step(torch.tensor(loss), norm)

    @property
    def weight(self):
        return self.engine.module.weight.item()


def test_stop_says_step_loss_norm_rank_and_samples(yaml, job):
    """A NaN loss stops the run by default; the message contains the step, loss, norm, rank and samples, and
    names the configuration field.
    """
    run = Run(yaml, job)
    run.step(2.0)
    with pytest.raises(StabilityError) as caught:
        run.step(math.nan, 3.0)
    assert str(caught.value) == (
        "step 2: the loss is nan on every rank, gradient norm 3; samples 4 to 7 of the training order; "
        "default: "
        "stability.on_nan = stop ends the job. Lower lr_schedule.lr or look at these samples; "
        "stability.on_nan = skip omits such steps, and rollback skips the samples since the "
        "checkpoint."
    )
    (event,) = read_events(job)
    assert (event["kind"], event["step"], event["loss"], event["grad_norm"]) == ("error", 2, "nan", 3.0)


def test_a_gradient_that_is_not_finite_is_distinguished_from_a_loss(yaml, job):
    run = Run(yaml, job)
    with pytest.raises(
        StabilityError,
        match=r"step 1: the gradient is not finite, gradient norm inf, although the loss is finite on",
    ):
        run.step(2.0, math.inf)


def test_skip_acts_before_the_weights_move(yaml, job):
    """With `skip`, a step with a bad loss or gradient is counted but does not change the weight; a good step
    does.
    """
    run = Run(yaml, job, on_nan="skip")
    run.step(2.0)
    before = run.weight
    assert run.step(math.nan).skipped
    assert run.step(2.0, math.nan).skipped
    assert run.weight == before
    assert run.engine.skipped_steps == 2 and run.engine.global_steps == 3
    assert not run.step(2.0).skipped
    assert run.weight == pytest.approx(before - 1.0, abs=1e-6)
    assert run.guard.history.counts == {
        "skipped_steps": 2,
        "overflow_steps": 0,
        "loss_spikes": 0,
        "rollbacks": 0,
        "steps_without_loss": 0,
    }
    first = next(iter(read_events(job)))
    assert first["kind"] == "skip"
    assert first["message"] == (
        "step 2: the loss is nan on every rank; samples 4 to 7 of the training order; the weights stay "
        "unchanged and the step's samples are skipped (stability.on_nan = skip)"
    )


def test_too_many_skips_end_the_job(yaml, job):
    """More than max_skipped_steps within the window end the job; steps skipped before the window do not
    count.
    """
    run = Run(yaml, job, on_nan="skip", max_skipped_steps=2, loss_spike_window_steps=5)
    for loss in (math.nan, math.nan, 1.0, 1.0, 1.0, 1.0, math.nan, math.nan):
        run.step(loss)
    with pytest.raises(
        StabilityError, match=r"3 of the last 5 steps were skipped, more than stability.max_skipped_steps = 2"
    ):
        run.step(math.nan)


def test_skipping_does_not_fix_weights(yaml, job):
    """If the loss is NaN because a weight is NaN, skipping cannot help, so the job ends at the first such
    step.
    """
    run = Run(yaml, job, on_nan="skip")
    run.step(2.0)
    run.engine.module.weight.data.fill_(math.nan)
    with pytest.raises(StabilityError, match=r"step 2: .*; the weights themselves are NaN or Inf \(weight\)"):
        run.step(math.nan)


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_not_saved(yaml, job, policy, value):
    """If a step with a good loss and gradient makes a weight NaN or infinite, it is not saved: with `skip`
    the run stops, and with `rollback` it returns to a checkpoint.
    """
    run = Run(yaml, job, on_nan=policy)
    run.step(2.0)
    run.guard.check_weights()
    run.engine.module.weight.data.fill_(value)
    with pytest.raises(StabilityError) as caught:
        run.guard.check_weights()
    assert isinstance(caught.value, RollbackError) == (policy == "rollback")
    said = (
        "after step 1 some weights are NaN or Inf (weight), so no checkpoint is saved; "
        "samples 0 to 3 of the training order"
    )
    assert str(caught.value).startswith(said)
    (event,) = read_events(job)
    assert event["message"].startswith(said)
    assert (event["kind"], event["bad"]) == ("rollback" if policy == "rollback" else "error", "weights")


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_a_spike_is_seen_once_the_window_is_full(yaml, job, policy):
    """A loss is compared with the mean of the window, which excludes spikes; until the window is full, no
    loss counts as a spike.
    """
    run = Run(yaml, job, on_loss_spike=policy, loss_spike_window_steps=3, loss_spike_factor=2.0)
    assert [run.step(loss).skipped for loss in (100.0, 1.0, 2.0, 3.0, 3.9)] == [False] * 5
    said = (
        r"step 6: the loss jumps to 6.4, 2.2 times the mean of the last 3 steps \(2.967\); "
        r"highest on rank 0 \(6.4\)"
    )
    if policy == "skip":
        weight = run.weight
        verdict = run.step(6.4)
        assert verdict.skipped and run.weight == weight
        assert run.step(5.9).skipped is False
    else:
        with pytest.raises(StabilityError if policy == "stop" else RollbackError, match=said):
            run.step(6.4)
    assert run.guard.history.counts["loss_spikes"] == 1


def test_spikes_are_ignored_where_nobody_asked(yaml, job):
    run = Run(yaml, job, loss_spike_window_steps=1)
    assert not any(run.step(loss).skipped for loss in (1.0, 50.0, 1.0))
    assert run.guard.history.counts["loss_spikes"] == 0


def test_a_rollback_carries_step_and_samples(yaml, job):
    run = Run(yaml, job, on_nan="rollback")
    run.step(2.0)
    with pytest.raises(RollbackError) as caught:
        run.step(math.nan)
    assert (caught.value.step, caught.value.positions, caught.value.exit_code) == (2, (4, 8), 0)
    (event,) = read_events(job)
    assert event["message"].endswith(
        "; the job returns to the newest checkpoint and skips the samples from there to the bad step "
        "(stability.on_nan = rollback)"
    )


def test_the_effect_of_each_policy_has_words():
    policies = {
        policy
        for field in ("on_nan", "on_loss_spike")
        for policy in get_args(StabilityConfig.model_fields[field].annotation)
    }
    assert set(EFFECTS) == policies - {"ignore"}


def test_one_policy_for_each_kind(yaml, job):
    """The policies are independent: a NaN loss stops the job although spikes are skipped, and does not change
    the weights.
    """
    run = Run(yaml, job, on_nan="stop", on_loss_spike="skip")
    weight = run.weight
    with pytest.raises(StabilityError, match="on_nan = stop"):
        run.step(math.nan)
    assert run.weight == weight


def test_the_window_goes_through_a_checkpoint(yaml, job):
    """The window of losses is saved in checkpoints, so that a resumed run can detect a spike at its first
    step.
    """
    settings = {"on_loss_spike": "skip", "loss_spike_window_steps": 3}
    run = Run(yaml, job, **settings)
    for loss in (1.0, 1.0, 1.0, 9.0):
        run.step(loss)
    saved = json.loads(json.dumps(run.guard.history.state_dict()))
    later = Run(yaml, job, **settings)
    later.guard.history.load_state_dict(saved)
    assert later.step(9.0).skipped
    assert later.guard.history.counts["skipped_steps"] == 2


def test_an_overflow_of_a_scale_that_adapts_is_no_bad_step(yaml, job):
    run = Run(yaml, job, on_nan="stop")
    fp16 = {"precision.dtype": "fp16", "precision.fp16.loss_scale": 0}
    run.guard.config = load(run.config, fp16, check=False)
    run.engine.optimizer.overflow = True
    assert run.step(2.0).overflowed
    assert run.guard.history.counts["overflow_steps"] == 1
    assert read_events(job) == []


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_an_overflow_of_a_fixed_scale_names_the_scale(yaml, job, policy):
    """If gradients overflow with a fixed loss scale, the message names the scale, unless the loss is NaN or
    the scale is 1 or less.
    """
    run = Run(yaml, job, on_nan=policy, max_skipped_steps=1)
    run.engine.optimizer.overflow = True
    advice = (
        "precision.fp16.loss_scale = 4,294,967,296 is fixed, and likely too high: lower it, "
        "or set 0 for a dynamic one"
    )

    def message_of(loss, loss_scale=2.0**32):
        fp16 = {"precision.dtype": "fp16", "precision.fp16.loss_scale": loss_scale}
        run.guard.config = load(run.config, fp16, check=False)
        if policy == "skip":
            return run.step(loss).reason
        with pytest.raises(StabilityError) as caught:
            run.step(loss)
        return str(caught.value)

    first = message_of(2.0)
    assert advice in first and "lr_schedule.lr" not in first
    assert advice in read_events(job)[0]["message"]
    if policy == "skip":
        with pytest.raises(StabilityError, match=r"no longer learns[.]$"):
            run.step(2.0)
        return
    assert "precision.fp16" not in (second := message_of(2.0, 1.0)) and "Lower lr_schedule.lr" in second
    assert "precision.fp16" not in (third := message_of(math.nan)) and "Lower lr_schedule.lr" in third


def test_an_overflow_at_the_smallest_scale_is_explained(yaml):
    """When DeepSpeed raises a plain Exception at the smallest loss scale, it becomes an error that names the
    field; other errors are passed on unchanged.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    config = load(yaml, {"precision.dtype": "fp16"}, check=False)
    scaler = DynamicLossScaler(1, 1000, 1, 1, False)
    with pytest.raises(LossScaleError) as caught, smallest_scale_explained(config, 7):
        scaler.update_scale(True)
    assert str(caught.value).startswith(
        "step 7: the gradient overflowed in fp16 at the smallest loss scale; "
    )
    assert "precision.fp16.min_loss_scale = 1." in str(caught.value)
    with pytest.raises(ZeroDivisionError), smallest_scale_explained(config, 7):
        1 / 0  # noqa: B018


def test_the_gradients_of_an_unknown_optimizer_are_not_guessed_at():
    with pytest.raises(TypeError, match="discarding gradients is not supported for SimpleNamespace"):
        discard_gradients(SimpleNamespace(optimizer=SimpleNamespace()))


# --- skipped samples --------------------------------------------------------------------------------------


def data_at(consumed, ranges=()):
    return DataState(1, "9,1,0", "megatron", "0" * 64, 1000, consumed, ranges)


def rolled_back(run, *ranges):
    run.path.mkdir(parents=True, exist_ok=True)
    for first, last in ranges:
        Rollback("20261121-031500-a1b2", 0, 0.0, 1, 0, first, last, "a spike").append(run.rollbacks_json)


def test_samples_of_a_rollback_are_passed_over(tmp_path):
    """After a rollback, the samples between the checkpoint and the bad step are skipped once, either
    immediately or when they come up in the sample order.
    """
    run = RunDir(tmp_path / "run")
    assert pass_bad_samples(run, data_at(40)) == data_at(40)
    rolled_back(run, (40, 60))
    data = pass_bad_samples(run, data_at(40))
    assert data.skipped_sample_ranges == ((40, 60),)
    assert list(data.step_positions(4)) == [60, 61, 62, 63]
    assert pass_bad_samples(run, data) == data
    # An older checkpoint: the samples in between are trained on.
    older = pass_bad_samples(run, data_at(36))
    assert list(older.step_positions(8)) == [36, 37, 38, 39, 60, 61, 62, 63]
    # A newer checkpoint that had already skipped them, and one that never had to.
    assert pass_bad_samples(run, data_at(44, ((40, 60),))) == data_at(44, ((40, 60),))
    assert pass_bad_samples(run, data_at(80)) == data_at(80)


def test_rollbacks_add_up(tmp_path):
    """Skipped samples add up if there is a second rollback, to the same checkpoint or to an earlier one."""
    run = RunDir(tmp_path / "run")
    rolled_back(run, (40, 60), (40, 72), (20, 44))
    data = pass_bad_samples(run, data_at(20))
    assert data.skipped_sample_ranges == ((20, 40), (40, 60), (60, 72))
    assert data.position(20) == 72
    # More than needed only reserves space in the index.
    assert skipped_samples(run, None) == 20 + 32 + 24
    assert skipped_samples(run, {"data_state": data_at(44, ((4, 8),)).to_dict()}) == 80


# --- DeepSpeed's optimizers -------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["turns", pytest.param("all", marks=pytest.mark.soak)])
def discarded(tmp_path_factory, fork_server, yaml, request):
    """Return what stability_worker.py wrote: the results of both ranks for each case, discarded in all three
    ways, or for every second case, discarded in one.
    """
    folder = tmp_path_factory.mktemp("discarded")
    ended = fork_server.run(
        2,
        "tests.train.stability_worker:main",
        [str(folder / "results.jsonl"), str(yaml), request.param],
        log=folder / "{rank}.log",
        sys_path=[launch.REPOSITORY],
        timeout_seconds=launch.TIMEOUT_SECONDS,
    )
    assert ended.succeeded, ended.last_output(40)
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_bad_step_leaves_no_trace(discarded, request):
    """A discarded step changes no weight, master weight, moment or step count, for each ZeRO stage and
    format, with offloading and in a pipeline.
    """
    assert len(discarded) == {"turns": 9, "all": 3 * 17}[request.node.callspec.params["discarded"]]
    assert {line["answers"][0]["optimizer"] for line in discarded} == {
        "AdamW",
        "BF16_Optimizer",
        "DeepSpeedZeroOptimizer",
        "DeepSpeedZeroOptimizer_Stage3",
    }
    for line in discarded:
        for answer in line["answers"]:
            about = f"{line['case']} {line['how']}: {answer}"
            assert answer["differing"] == [], about
            assert answer["values"] > 8, about
            assert (answer["skipped_steps"], answer["global_steps"]) == (1, 5), about


@pytest.mark.slow
def test_every_rank_hears_of_one_weight_that_is_no_number(discarded):
    """If the last value of rank 1's partition is NaN, every rank reports it, in every ZeRO stage and format;
    NaN in padding is not reported.
    """
    for line in discarded:
        for answer in line["answers"]:
            assert answer["sound"] == "", line["case"]
            assert answer["spoilt"] == line["answers"][1]["spoilt_name"], line["case"]


@pytest.mark.slow
def test_every_rank_decides_alike_and_names_the_culprit(discarded):
    """If only the loss of rank 0 is NaN, both ranks skip exactly that step and name rank 0.

    Overflows of fp16 are counted separately.
    """
    for line in discarded:
        first, second = line["answers"]
        assert (first["verdicts"], first["overflowed"]) == (second["verdicts"], second["overflowed"])
        if line["how"] == "call":
            continue
        own_affair = line["case"]["dtype"] == "fp16" and line["how"] == "gradient"
        skipped = first["overflowed"] if own_affair else first["verdicts"]
        assert skipped == [False, False, True, False, False]
        if line["how"] == "loss" and "pipeline" not in line["case"]:
            assert first["reason"].startswith("step 3: the loss is nan on rank 0 of 2; samples 16 to 23")


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_step_without_a_token_in_the_loss_counts_in_no_mean(yaml, job, policy):
    """A step without a token in the loss is not part of the window's mean; otherwise the next loss would look
    like a spike.
    """
    run = Run(yaml, job, on_loss_spike=policy, loss_spike_window_steps=3, loss_spike_factor=2.0)
    for loss, tokens in ((0.0, 0), (0.0, 0), (0.0, 0), (5.0, 9), (0.0, 0), (5.0, 9), (5.0, 9), (9.0, 9)):
        assert not run.step(loss, tokens_in_loss=tokens).skipped
    assert list(run.guard.history.losses) == [5.0, 5.0, 9.0]
    assert run.guard.history.counts["steps_without_loss"] == 4
    if policy == "skip":
        assert run.step(13.0, tokens_in_loss=9).skipped  # more than twice the mean of 19 / 3
    else:
        with pytest.raises(StabilityError, match=r"the loss jumps to 13, 2\.1 times the mean of the last 3"):
            run.step(13.0, tokens_in_loss=9)


def test_after_losses_of_nothing_but_0_no_loss_is_a_spike(yaml, job):
    """If all earlier losses are exactly 0, which is possible in preference training, a later loss is never
    reported as a spike.
    """
    run = Run(yaml, job, on_loss_spike="skip", loss_spike_window_steps=2)
    for loss in (0.0, 0.0, 1e-6, 0.0, 0.0, 3.0):
        assert not run.step(loss).skipped
