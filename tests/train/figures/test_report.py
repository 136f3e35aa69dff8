"""Reports by rank 0: log lines, alerts and units."""

import logging
import math
import time

import pytest
import torch

from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.live.live_run import TrainState
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.load import load
from nbtrain.dataset.samples.state import DataState
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.parallel.startup import World
from nbtrain.train.figures import throughput
from nbtrain.train.figures.alerts import Alerts
from nbtrain.train.figures.report import Report
from nbtrain.train.figures.step_result import StepResult
from nbtrain.train.figures.stragglers import Spread
from nbtrain.train.figures.throughput import StepTimer, TimeSplit
from nbtrain.train.health.heartbeat import HeartbeatWriter

CPU = torch.device("cpu")


@pytest.fixture
def job(tmp_path):
    return RunDir(tmp_path / "run").job("20261121-031500-a1b2")


@pytest.fixture
def config():
    overrides = {
        "logging.log_interval_steps": 2,
        "model.seq_length": 256,
        "batch.micro_batch_size": 16,
        "batch.global_batch_size": 16,
        "batch.train_tokens": 800 * 16 * 256,
        "lr_schedule.lr_warmup_tokens": 4096,
    }
    return load("gpt-tiny", overrides)


@pytest.fixture
def report(job, config, tmp_path, monkeypatch):
    # test_throughput.py tests the measurement.
    monkeypatch.setattr(throughput, "measure_matmul_flops", lambda device, dtype: 1e12)
    state = TrainState(0, DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000))
    heartbeat = HeartbeatWriter(job, 0, 0)
    heartbeat.progress, heartbeat.events = TrainingProgress(800, 3_276_800), EventWriter(job, "rank0")
    report = Report(config, World(0, 1, 0, CPU), state, heartbeat, tmp_path / "tensorboard")
    yield report
    report.close()


def written(folder):
    """Return {tag: series} of the scalars that a report has written."""
    reader = ScalarReader(folder / "tensorboard")
    reader.refresh()
    return reader.series


def add_step(report, config, step, loss=4.5, **more):
    data = DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=16 * step)
    result = StepResult(
        step,
        16,
        16 * step,
        2e-3,
        torch.tensor(loss),
        0.84321,
        1.0,
        StepTimer(CPU),
        2.0,
        step % 2 == 0,
        **more,
    )
    report.add_step(result, TrainState(step, data))


def test_log_line(report, config, caplog):
    """A log line is written every log_interval_steps and begins with the most important numbers."""
    caplog.set_level(logging.INFO, "nbtrain")
    for step in (1, 2):
        add_step(report, config, step)
    assert caplog.messages == [
        "step      2 | tokens 8.19k / 3.28M | loss 4.5000 | lr 2.00e-3 | grad norm 0.84 | 2.00 s "
        "| 2.05k tokens/s"
    ]


def overflow(report, step, before, now, count):
    """Return the result of an fp16 step that overflowed with the loss scale `before`, as overflow number
    `count`; None returns a good step.
    """
    data = DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=16 * step)
    result = StepResult(
        step, 16, 16 * step, 2e-3, torch.tensor(4.5), math.inf if before else 0.5, now, StepTimer(CPU),
        wall_seconds=2.0, logged=True, overflowed_scale=before,
        stability_counts={"overflow_steps": count} if count else {},
    )  # fmt: skip
    report.add_step(result, TrainState(step, data))


def test_an_overflow_of_fp16_is_shown_instead_of_its_norm(report, caplog):
    """For a step that overflows, the line shows the loss scale instead of a gradient norm, also if the
    initial scale is not a power of two.
    """
    caplog.set_level(logging.INFO, "nbtrain")
    fp16 = {"precision.dtype": "fp16"}
    report.config = load(report.config, fp16, check=False)
    progress = []
    for step, (before, now, count) in enumerate(
        [(None, 2.0**32, 0), (2.0**32, 2.0**32, 1), (2.0**32, 2.0**31, 2), (3e4, 1.5e4, 3)], start=1
    ):
        overflow(report, step, before, now, count)
        progress.append((report.progress.overflow_steps, report.progress.grad_norm))
    assert [message.split(" | ")[4] for message in caplog.messages] == [
        "grad norm 0.50",
        "overflow, loss scale 2^32",
        "overflow, loss scale 2^32 -> 2^31",
        "overflow, loss scale 30000 -> 15000",
    ]
    assert progress == [(0, 0.5), (1, None), (2, None), (3, None)]


def test_most_steps_overflowing_is_reported_once(report, job):
    """If more than half of the last twenty steps overflowed, one warning is raised."""
    report.config = load(report.config, {"precision.dtype": "fp16"}, check=False)
    for step in range(1, 61):
        overflow(report, step, 2.0 if step % 3 else None, 1.0, step)
    alerts = [event["message"] for event in read_events(job) if event["kind"] == "alert"]
    assert len(alerts) == 1
    for part in (
        "step 16: 11 of the last 16 steps",
        "(loss scale now 2^0)",
        "precision.fp16.initial_scale_power",
        "lr_schedule.lr",
        "bf16",
    ):
        assert part in alerts[0]


def test_on_a_gpu_a_logged_step_is_written_after_the_next_ones_launch(report, config, caplog, monkeypatch):
    """On a GPU, the line of a logged step is written after the next step has been launched; flush() writes
    the remaining lines.
    """
    caplog.set_level(logging.INFO, "nbtrain")
    monkeypatch.setattr(report, "world", World(0, 1, 0, torch.device("cuda")))
    monkeypatch.setattr(report, "_device_memory", lambda: (None, None))
    monkeypatch.setattr("nbtrain.train.figures.report.device_utilization", lambda device: None)
    seen = []
    for step in range(1, 6):
        add_step(report, config, step, loss=5.0 - step)
        seen.append((len(caplog.messages), report.progress.loss))
    assert seen == [(0, None), (0, None), (1, 3.0), (1, 3.0), (2, 1.0)]
    report.flush()
    assert (len(caplog.messages), report.progress.loss) == (2, 0.0)


def test_progress_follows_the_steps(report, config):
    for step in (1, 2, 3):
        add_step(report, config, step, loss=5.0 - step)
    progress = report.progress
    assert (progress.consumed_samples, progress.consumed_tokens) == (48, 48 * 256)
    assert (progress.loss, progress.grad_norm, progress.learning_rate) == (2.0, 0.84321, 2e-3)
    assert progress.samples_per_second == 8.0
    assert progress.tokens_per_second == 2048.0
    # 797 steps of 2 s are left.
    assert progress.eta_seconds == pytest.approx(1594)
    assert progress.num_parameters == count_parameters(config).total


def test_a_nan_loss_raises_an_alert(report, config, job):
    add_step(report, config, 1, loss=float("nan"))
    assert [event["message"] for event in read_events(job) if event["kind"] == "alert"] == [
        "step 1: the loss is nan"
    ]


def test_a_slow_rank_is_reported_after_three_times_in_a_row(report, job):
    """A rank that is slow in three logged steps in a row raises one alert.

    Occasional slow steps afterwards raise no second alert.
    """
    state = TrainState(1, DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=16))
    owns = (1.5, 1.5, 1.0, 1.3, 1.3, 1.3, 1.3, *(1.0,) * 9, 1.3, *(1.0,) * 9, 1.3, 1.3, 1.3)
    for step, own in enumerate(owns, start=1):
        report.add_spread(step, Spread.of([1.0, own, 1.0], [0, 0, 0], ["a", "b", "c"]), state)
    report.add_spread(30, None, state)
    assert [event["message"] for event in read_events(job) if event["kind"] == "alert"] == [
        "step 6: rank 1 on b needs 1.3 s of compute per step, 30% above the median of its pipeline stage, "
        "in 3 logged steps in a row (limit: logging.alerts.max_rank_slowdown = 25%)"
    ]


def test_the_end_reports_where_the_time_went(report, config, job, monkeypatch):
    """The final report shows how the time of the run was divided between data, forward, checkpoint and
    evaluation.
    """
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timer = StepTimer(CPU)
    for part, seconds in (("data", 1.0), ("forward", 2.0)):
        with timer.part(part):
            now[0] += seconds
    now[0] += 1.0
    timer.end()
    data = DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=16)
    state = TrainState(1, data, validation_loss=4.0)
    report.add_step(StepResult(1, 16, 16, 2e-3, torch.tensor(4.0), 0.8, 1.0, timer, wall_seconds=9.0), state)
    report.add_checkpoint(state, 3.0)
    report.add_validation(state, 1.0)
    validations = -(-800 // config.evaluation.eval_interval_steps)
    checkpoints = -(-800 // config.checkpoint.save_interval_steps)
    assert report.progress.eta_seconds == pytest.approx(799 * 9.0 + validations * 1.0 + checkpoints * 3.0)
    report.close()
    event = next(event for event in read_events(job) if event["kind"] == "time")
    expected = {"data": 1.0, "forward": 2.0, "other": 1.0, "checkpoint": 3.0, "evaluation": 1.0}
    assert {name: seconds for name, seconds in event["seconds"].items() if seconds} == expected
    assert event["message"] == (
        "time of 1 step: data 12.5%, forward 25.0%, checkpoint 37.5%, evaluation 12.5%, other 12.5%"
    )


def test_communication_is_estimated_from_the_steps_where_it_was_measured():
    """Communication time is extrapolated from the steps in which it was measured: a quarter of 8 s is 2 s."""
    split = TimeSplit()
    split.add_step(4.0, {"forward": 4.0}, 1.0)
    split.add_step(4.0, {"backward": 4.0}, None)
    split.add(evaluation=2.0)
    assert split.seconds()["communication"] == 2.0
    assert str(split) == "forward 40.0%, backward 40.0%, evaluation 20.0%; communication in these parts 20.0%"


def test_an_alert_is_raised_when_crossed_and_again_only_after_it_was_kept_for_a_while(job, config):
    """An alert whose condition changes at every step is raised once, and again only after ten clear steps in
    a row.
    """
    alerts = Alerts(config, EventWriter(job, "rank0"))
    used = [0.5, *(0.95, 0.5) * 20, *(0.5,) * 8, 0.92, *(0.5,) * 10, 0.91]
    for step, fraction in enumerate(used, start=1):
        alerts.check_all(step, host_memory_fraction=fraction)
    assert [event["message"] for event in read_events(job)] == [
        "step 2: host memory 95.0% is above the limit of 90% (logging.alerts.max_host_memory_fraction)",
        "step 60: the alert for logging.alerts.max_host_memory_fraction has ended after 10 checks in a row "
        "without a problem",
        "step 61: host memory 91.0% is above the limit of 90% (logging.alerts.max_host_memory_fraction)",
    ]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("overflow_steps", "overflow_steps"),
        ("max_rank_slowdown of rank 1", "logging.alerts.max_rank_slowdown"),
    ],
)
def test_an_alert_that_is_over_names_a_setting_if_there_is_one(job, config, name, what):
    alerts = Alerts(config, EventWriter(job, "rank0"))
    for step in range(11):
        alerts.check(name, step == 0, "crossed", step)
    assert [event["message"] for event in read_events(job)][1] == (
        f"step 10: the alert for {what} has ended after 10 checks in a row without a problem"
    )


def test_a_threshold_below_and_one_turned_off(job):
    config = load("gpt-tiny", {"logging.alerts.max_host_memory_fraction": None})
    alerts = Alerts(config, EventWriter(job, "rank0"))
    alerts.check_all(3, mfu=0.2, host_memory_fraction=0.99, device_memory_fraction=None)
    assert [(event["alert"], event["message"]) for event in read_events(job)] == [
        ("min_mfu", "step 3: MFU 20.0% is below the limit of 50% (logging.alerts.min_mfu)")
    ]


def test_waiting_for_other_stages_is_a_share_of_the_steps_alone():
    """The idle time of a pipeline is a fraction of step time only: 2 of 8 s, although a validation took
    another 10 s. Before the first step it is None.
    """
    split = TimeSplit()
    assert split.step_fraction("pipeline") == 0.0
    split.add_step(8.0, {"forward": 5.0, "pipeline": 2.0}, None)
    split.add(evaluation=10.0)
    assert split.step_fraction("pipeline") == 0.25


def test_a_step_without_a_token_in_the_loss_has_no_loss(report, config, job, caplog, tmp_path):
    """If a step has no token in the loss, no loss is recorded, the log line says why, and the latest loss is
    kept.
    """
    caplog.set_level(logging.INFO, "nbtrain")
    add_step(report, config, 1, tokens_in_loss=7.0)
    add_step(report, config, 2, loss=0.0, tokens_in_loss=0.0, stability_counts={"steps_without_loss": 1})
    assert caplog.messages[0].split(" | ")[2] == "no token in the loss"
    assert (report.progress.loss, report.progress.steps_without_loss) == (4.5, 1)
    report.close()
    found = written(tmp_path)
    assert list(found["lm-loss-training/lm loss"].steps) == [1]
    assert list(found["stability/steps without loss"].values) == [1.0]
    assert list(found["grad-norm/grad-norm"].steps) == [1, 2]


def test_a_validation_without_a_token_in_the_loss_is_a_warning(report, config, job, tmp_path):
    """If a validation has no token in the loss, there is a warning and no loss is recorded, but the step
    counts as validated.
    """
    state = TrainState(4, DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=64))
    state.validated(2.0)
    report.add_validation(state, 1.0)
    state.step = 8
    state.validated(None)
    report.add_validation(state, 1.0)
    assert (state.evaluated_step, state.validation_loss, state.best_validation_loss) == (8, None, 2.0)
    report.add_test(state, None, 1.0)
    assert [event["message"] for event in read_events(job) if event["kind"] == "warning"] == [
        "step 8: no validation loss: none of the tokens that were read is in the loss",
        "step 8: no test loss: none of the tokens that were read is in the loss",
    ]
    report.close()
    assert list(written(tmp_path)["lm-loss-validation/lm loss validation"].steps) == [4]


def test_the_validation_loss_of_each_dataset_is_written_and_kept(report, config, tmp_path, caplog):
    """The validation loss and perplexity of each dataset are written as curves and saved in the run's
    progress.
    """
    caplog.set_level(logging.INFO, "nbtrain")
    state = TrainState(4, DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=64))
    state.validated(2.0)
    report.add_validation(state, 1.0, dataset_losses={"wiki": 1.5, "code": 2.5})
    assert report.progress.validation_losses == {"wiki": 1.5, "code": 2.5}
    assert "| wiki 1.5000, code 2.5000 |" in caplog.messages[0]
    report.close()
    found = written(tmp_path)
    assert list(found["lm-loss-validation/lm loss validation/wiki"].values) == [1.5]
    assert list(found["lm-loss-validation/lm loss validation ppl/code"].values) == [
        pytest.approx(math.exp(2.5), rel=1e-6)
    ]


def test_a_perplexity_too_large_for_a_float_is_not_written(report, tmp_path, caplog):
    """A validation loss whose exponential is too large for a float is written alone."""
    caplog.set_level(logging.INFO, "nbtrain")
    state = TrainState(4, DataState(1, "1,0,0", "megatron-core", "0" * 64, 100_000, consumed_samples=64))
    state.validated(800.0)
    report.add_validation(state, 1.0, dataset_losses={"wiki": 800.0})
    report.close()
    assert "validation loss 800.0000 |" in caplog.messages[0]
    found = {tag for tag in written(tmp_path) if tag.startswith("lm-loss-validation/")}
    assert found == {"lm-loss-validation/lm loss validation", "lm-loss-validation/lm loss validation/wiki"}
