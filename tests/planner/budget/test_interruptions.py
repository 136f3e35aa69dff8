"""Interruptions of a run: Daly's published intervals, a simulation, prices, and the plan's section."""

import math
import random
import statistics

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import data_home
from nbtrain.config.load import load
from nbtrain.planner.budget.cost import read_prices, user_prices
from nbtrain.planner.budget.interruptions import (
    GPU_HOURS_PER_FAILURE,
    _Work,
    best_training_seconds,
    measured_restart_seconds,
    segment_time,
)
from nbtrain.planner.plan import plan

pytestmark = pytest.mark.usefixtures("examples")


@pytest.mark.parametrize(("between_minutes", "best_minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_interval_is_dalys(between_minutes, best_minutes):
    """The best interval is the one of Daly's figures 3 to 5, with saves of five minutes."""
    best = best_training_seconds(5 * 60, between_minutes * 60) / 60
    assert best == pytest.approx(best_minutes, rel=0.008)


def simulated(seconds: float, restart: float, between: float, waiting: float, rng: random.Random) -> float:
    """Return the time until `seconds` have passed without an interruption, with drawn interruptions."""
    total, wanted = 0.0, seconds
    while (until := rng.expovariate(1 / between)) < wanted:
        total += until + waiting
        # An interruption of the restart begins it again; only after the whole restart is the segment tried.
        while (until := rng.expovariate(1 / between)) < restart:
            total += until + waiting
        total += restart
    return total + wanted


@pytest.mark.parametrize(
    ("seconds", "restart", "between", "waiting"), [(10, 5, 20, 0), (60, 10, 30, 0), (6, 1, 60, 90)]
)
def test_time_and_variance_are_those_of_a_simulation(seconds, restart, between, waiting):
    """The mean is Daly's equation 20, and mean and variance are those of 20,000 drawn segments. Nothing is
    interrupted while the run waits for machines.
    """
    rng = random.Random(7)
    times = [simulated(seconds, restart, between, waiting, rng) for _ in range(20_000)]
    found = segment_time(seconds, restart, between, waiting)
    by_hand = (between + waiting) * math.exp(restart / between) * math.expm1(seconds / between)
    assert found.mean == pytest.approx(by_hand, rel=1e-9)
    assert statistics.fmean(times) == pytest.approx(found.mean, rel=0.03)
    assert statistics.pstdev(times) == pytest.approx(math.sqrt(found.variance), rel=0.1)


def test_notice_is_that_of_a_simulation():
    """Interruptions with notice cost a save and a restart, which may be interrupted too, and wait."""
    rng, times = random.Random(7), []
    for _ in range(20_000):
        total, done = 0.0, 0.0
        while (done := done + (until := rng.expovariate(1 / 20))) < 101:
            total += until + 1 + 3
            while (until := rng.expovariate(1 / 20)) < 5:
                total += until + 3
            total += 5
        times.append(total + 101 - done + until)
    found = _Work(100, 1.0, 1.0, 0.0, 5.0, 3.0).time(100, 0.0, 1 / 20)
    assert statistics.fmean(times) == pytest.approx(found.mean, rel=0.03)
    assert statistics.pstdev(times) == pytest.approx(math.sqrt(found.variance), rel=0.1)


def test_the_variance_of_rare_interruptions_has_its_digits():
    """An interruption in 100,000 segments lasts on average half a segment: the variance is seconds^2 / 3 of
    these few.
    """
    assert segment_time(100, 0, 1e7).variance == pytest.approx(100 * 100 / 3 * 1e-5, rel=1e-3)


def test_saves_in_the_background_follow_each_other():
    """No interval is shorter than a save in the background, however little it holds the training up."""
    assert _Work(1000, 1.0, 0.0, 40.0, 60.0, 0.0).best_interval(1 / 3600) == 40


def test_a_segment_longer_than_the_machines_last_never_ends():
    """A segment of 30 mean times between interruptions has an infinite expected time."""
    assert segment_time(3000, 0, 100).mean == math.inf


def test_the_interval_of_the_finding_loses_the_least():
    """The finding names the best interval, and with it the plan has no finding and a shorter time."""
    overrides = ["resources.interruptions_per_day=2"]
    first = plan(load("gpt-13b-4xdp-4xpp", overrides))
    (finding,) = [finding for finding in first.findings if finding.rule == "saves_fit_interruptions"]
    expected = first.interruptions
    assert expected is not None and expected.low_seconds < expected.seconds < expected.high_seconds
    assert finding.key == "checkpoint.save_interval_steps"
    assert str(expected.best_save_interval_steps) in finding.fix
    better = plan(
        load(
            "gpt-13b-4xdp-4xpp",
            [*overrides, f"checkpoint.save_interval_steps={finding.fix.split()[-1][:-1]}"],
        )
    )
    assert not [finding for finding in better.findings if finding.rule == "saves_fit_interruptions"]
    assert better.interruptions is not None
    assert better.interruptions.seconds == pytest.approx(expected.best_seconds, rel=0.01)
    for steps in (expected.best_save_interval_steps // 2, expected.best_save_interval_steps * 2):
        other = plan(load("gpt-13b-4xdp-4xpp", [*overrides, f"checkpoint.save_interval_steps={steps}"]))
        assert other.interruptions is not None and other.interruptions.seconds > expected.best_seconds


def test_failures_are_assumed_by_gpu_hours_and_few_are_not_mentioned():
    """175B expects a failure in 50,677 GPU hours, and gpt-125m, which expects none, has no such section."""
    assert round(GPU_HOURS_PER_FAILURE) == 50_677
    large = plan(load("gpt-175b"))
    assert large.interruptions is not None
    devices = large.config.world_size
    assert large.interruptions.per_day == pytest.approx(devices * 24 / GPU_HOURS_PER_FAILURE)
    assert "Interruptions" in large.sections()
    assert plan(load("gpt-125m-4xdp")).interruptions is None


def test_checkpoints_on_the_nodes_disks_repeat_fewer_steps():
    """If interruptions leave the nodes' disks, the time is Daly's for the interval there, with a restart that
    reads them; spot machines are taken away with their disks.
    """
    disks = ["checkpoint.local_dir=/nvme", "checkpoint.local_save_interval_steps=100"]
    run = ["resources.interruptions_per_day=2", "checkpoint.async_save=false", *disks]
    found = plan(load("gpt-13b-4xdp-4xpp", run))
    expected, read = found.interruptions, found.duration.local_save_seconds
    assert expected is not None and expected.local_seconds is not None
    assert expected.local_interval_steps == 100 and found.duration.save_seconds > 10 * read
    segments = found.config.train_steps / 100
    daly = segments * segment_time(found.duration.seconds / segments, 300 + read, 86_400 / 2).mean
    assert expected.local_seconds == pytest.approx(daly, rel=0.01)
    assert expected.undisturbed_seconds < expected.local_seconds < 0.5 * expected.seconds
    assert "100 steps" in expected.rows()["nodes' disks"]
    # An interruption repeats a copy that is not in the run directory yet.
    assert expected.lost_save_seconds > 0.8 * found.duration.save_seconds
    spot = plan(load("gpt-13b-4xdp-4xpp", [*run, "resources.capacity=spot"])).interruptions
    assert spot is not None and spot.local_seconds is None and "nodes' disks" not in spot.rows()
    shared = plan(load("gpt-13b-4xdp-4xpp", run[:2])).interruptions
    assert shared is not None and shared.local_seconds is None


def test_notice_repeats_no_step():
    """With a notice before machines are taken away the run loses less, and only failures repeat steps."""
    spot = ["resources.gpu_type=H100", "resources.capacity=spot", "resources.interruptions_per_day=4"]
    sudden = plan(load("gpt-13b-4xdp-4xpp", spot)).interruptions
    noticed = plan(
        load("gpt-13b-4xdp-4xpp", [*spot, "backend.preemption_notice=[check-notice]"])
    ).interruptions
    assert sudden is not None and noticed is not None
    assert noticed.gives_notice and not sudden.gives_notice
    assert noticed.seconds < sudden.seconds and noticed.expected_sudden < 1 < sudden.expected_sudden


def test_spot_is_cheaper_up_to_the_named_number():
    """Spot machines cost as much as those on demand at the number of interruptions that the plan names."""
    spot = ["resources.gpu_type=H100", "resources.capacity=spot"]
    few = plan(load("gpt-13b-4xdp-4xpp", [*spot, "resources.interruptions_per_day=0.01"])).interruptions
    assert few is not None and few.break_even_per_day and few.spot_money and few.on_demand_money
    assert few.spot_money < few.on_demand_money
    even = plan(
        load("gpt-13b-4xdp-4xpp", [*spot, f"resources.interruptions_per_day={few.break_even_per_day}"])
    ).interruptions
    assert even is not None and even.spot_money == pytest.approx(few.on_demand_money, rel=1e-3)


def test_waiting_for_spot_machines_delays_and_is_not_paid():
    """Minutes of waiting lengthen the run, and its money stays."""
    spot = ["resources.gpu_type=H100", "resources.capacity=spot", "resources.interruptions_per_day=3"]
    now = plan(load("gpt-13b-4xdp-4xpp", spot)).interruptions
    later = plan(load("gpt-13b-4xdp-4xpp", [*spot, "resources.spot_wait_minutes=60"])).interruptions
    assert now is not None and later is not None
    assert later.seconds > now.seconds and later.spot_money == pytest.approx(now.spot_money)
    # Eight interruptions of an hour each, and none while there are no machines.
    assert later.expected == pytest.approx(now.expected)
    assert later.seconds - now.seconds == pytest.approx(3600 * now.expected)


def test_spot_prices_of_the_user(workspace):
    """A user's table may give spot prices alone or beside others, and a wrong one is refused by its line."""
    data_home().mkdir(parents=True, exist_ok=True)
    user_prices().write_text("per_device_hour:\n  H100: {usual: 3, spot: {low: 1, usual: 2, high: 4}}\n")
    found = plan(load("gpt-13b-4xdp-4xpp", ["resources.gpu_type=H100", "resources.capacity=spot"])).cost
    assert found.price == found.spot and found.spot is not None and found.on_demand is not None
    assert (found.spot.low, found.spot.usual, found.spot.high, found.on_demand.usual) == (1, 2, 4, 3)
    user_prices().write_text("per_device_hour:\n  H100: {spot: {usual: 2}}\n")
    assert read_prices().value["per_device_hour"]["H100"] == {"spot": {"usual": 2}}
    user_prices().write_text("per_device_hour:\n  H100: {usual: 3, spot: {usual: -2}}\n")
    with pytest.raises(ConfigError, match=r"prices\.yaml:2: H100\.spot\.usual = -2"):
        read_prices()
    user_prices().write_text("per_device_hour:\n  H100: {usual: 3, spot: 2}\n")
    with pytest.raises(
        ConfigError, match=r"prices\.yaml:2: H100\.spot must be a mapping with low, usual, high"
    ):
        read_prices()


def test_a_measured_restart_comes_first(workspace):
    """Restarts are measured from the end of an attempt to the next one's first step, without the time for
    which the job was paused or waited for devices.
    """
    run = RunDir.named("gpt-13b-4xdp-4xpp")
    assert measured_restart_seconds(run) == 0
    record = JobRecord(
        job_id="20260101-000000-aaaa", run_id="r", name="n", state="SUCCEEDED", created_at=0.0, world_size=1
    )
    record.attempts = [
        AttemptRecord(0, 0.0, 1, 1, running_at=5.0, ended_at=100.0),
        AttemptRecord(1, 101.0, 1, 1, running_at=120.0, ended_at=200.0),
        AttemptRecord(2, 500.0, 1, 1, running_at=540.0, paused_seconds=300.0),
    ]
    run.job(record.job_id).path.mkdir(parents=True)
    record.write(run.job(record.job_id).job_json)
    assert measured_restart_seconds(run) == pytest.approx((20 + 40) / 2)
    expected = plan(load("gpt-13b-4xdp-4xpp", ["resources.interruptions_per_day=1"])).interruptions
    assert expected is not None and expected.restart_seconds == pytest.approx(30)
    assert "measured" in expected.restart_basis
