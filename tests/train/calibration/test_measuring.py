"""The GPU side of a calibration: what is measured, by which processes, and what they return."""

import os
import statistics
import subprocess
import time

import pytest
import torch

from nbtrain.base.errors import JobError
from nbtrain.train.calibration import collectives, kernels, stopwatch
from nbtrain.train.calibration.__main__ import (
    ENGINES,
    FIGURES,
    MORE_SLICES,
    lines_until,
    measured_until,
    plan_of,
    run_ranks,
)
from nbtrain.train.calibration.engine_steps import MODELS, SLICES
from nbtrain.train.calibration.stopwatch import LEAST_CALLS, Stopwatch
from nbtrain.train.calibration.worker import ZERO_STAGES

CPU = torch.device("cpu")
# Call everything once.
NO_TIME = {"until": 0.0, "slices": 1, "engines": 0, "build_seconds": 0.0}
SMALL = kernels.Sizes(
    products=((32, 32, 16), (64, 32, 16)),
    blocks=((64, 256),),
    sequences=(64, 128),
    ends=((64, 128),),
    ends_tokens=256,
    optimizer_parameters=1 << 10,
)


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    monkeypatch.setattr(kernels, "MEMORY_BYTES", 1 << 16)


class Clock:
    """A task whose successive calls take the given numbers of seconds."""

    def __init__(self, *seconds):
        self.ends, self.calls, self.now = list(seconds), 0, 0.0

    def task(self):
        self.now += self.ends[min(self.calls, len(self.ends) - 1)]
        self.calls += 1


@pytest.fixture
def clocked(monkeypatch):
    def watch(clock, slice_seconds):
        monkeypatch.setattr(Stopwatch, "_now", lambda self: clock.now)
        monkeypatch.setattr(Stopwatch, "_left_seconds", lambda self: slice_seconds * self.slices)
        return Stopwatch(CPU, until=0.0, slices=4)

    return watch


def test_the_median_of_the_calls_that_fit_without_the_first(clocked):
    """The result is the median of as many calls as fit in the time limit. The first call is a warm-up and is
    not counted.
    """
    clock = Clock(5.0, 1.0, 9.0, 1.0)
    assert clocked(clock, 10.0).seconds(clock.task) == statistics.median([1, 9, 1, 1, 1, 1, 1, 1]) == 1.0
    assert clock.calls == 9


def test_a_slow_task_is_called_at_least_a_few_times_and_a_very_slow_one_once(clocked):
    clock = Clock(4.0, 4.0)
    assert clocked(clock, 1.0).seconds(clock.task) == 4.0 and clock.calls == 1 + LEAST_CALLS
    clock = Clock(6.0)
    assert clocked(clock, 1.0).seconds(clock.task) == 6.0 and clock.calls == 1


def test_each_measurement_has_its_share_of_the_time_that_is_left(monkeypatch):
    """Each measurement gets its share of the time that is left; time for engines that are still to be built
    is set aside.
    """
    clock, now = Clock(1.0), 0.0
    monkeypatch.setattr(Stopwatch, "_now", lambda self: clock.now)
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now)
    watch = Stopwatch(CPU, until=50.0, slices=4, engines=1, build_seconds=10.0)
    watch.seconds(clock.task, 2)
    assert clock.calls == 2 + 20 - 2 - 1  # warm-up and first call, then as many as fit into 20 s
    watch.engines, now, clock.calls = 0, 50.0, 0
    watch.seconds(clock.task)
    assert clock.calls == 1 and watch.slices == 1  # the time is used up


def test_the_spread_is_that_of_the_middle_half(clocked):
    """The reported spread is the largest of the measurements of a metric, or None after a single call, and
    starts again for each metric.
    """
    steady = Clock(1.0, 1.0, 9.0, 1.0)
    watch = clocked(steady, 10.0)
    watch.seconds(steady.task)
    assert watch.take_spread() == 0.0  # one call of eight
    uneven = Clock(1.0, 1.0, 3.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0)
    watch = clocked(uneven, 10.0)
    watch.seconds(uneven.task)
    assert watch.take_spread() == pytest.approx(0.5)
    slow = Clock(60.0)
    watch = clocked(slow, 10.0)
    watch.seconds(slow.task)
    assert watch.take_spread() is None


def test_each_start_of_ranks_has_its_share_of_the_time():
    """Starting ranks and building engines gets at most half of the time, measurements share the rest, and a
    twentieth is reserved for the end.
    """
    assert measured_until(10.0, 210.0, [100, 200], [20, 20]) == pytest.approx(10 + 33 + (190 - 66) / 3)
    assert measured_until(100.0, 110.0, [100], [20]) == pytest.approx(100 + 9.5)
    assert measured_until(100.0, 90.0, [100], [20]) < 100


def test_ranks_that_are_late_are_ended():
    """Ranks that exceed the time limit of a measurement are killed."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe, os.fdopen(write, "wb", buffering=0) as rank:
        rank.write(b"said\nhalf a line")
        lines = lines_until(pipe, time.monotonic() + 0.2)
        assert next(lines) == b"said"
        with pytest.raises(TimeoutError):
            next(lines)
    with subprocess.Popen(["printf", "one\ntwo\nrest"], stdout=subprocess.PIPE) as process:
        assert list(lines_until(process.stdout, time.monotonic() + 600)) == [b"one", b"two"]


def test_every_figure_is_measured_and_positive():
    """Every metric is measured and positive; the throughput of a matrix product is its FLOPs divided by its
    seconds.
    """
    found = list(kernels.measure(Stopwatch(CPU, 0.0, 1), SMALL, ["fp32", "bf16"], ["fp32"]))
    assert len(found) == kernels.count("cpu", SMALL, ["fp32", "bf16"], ["fp32"]) == 2 + 4 + 2 + 2 + 1
    kinds = {figure["what"] for figure in found}
    assert kinds == {"memory", "optimizer", "product", "attention", "block", "norms", "ends"}
    for figure in found:
        values = [value for value in figure.values() if isinstance(value, float)]
        assert values and all(value >= 0 for value in values) and max(values) > 0


def test_the_bar_counts_what_the_ranks_measure():
    """The number of metrics that the progress bar expects (in __main__) equals the number of sizes that are
    measured.
    """
    for device, sizes, formats, model in (
        ("cpu", kernels.CPU_SIZES, ["fp32", "bf16", "fp16"], ["fp32", "bf16"]),
        ("gpu", kernels.GPU_SIZES, ["fp32", "fp16", "tf32", "bf16", "fp8"], ["bf16"]),
    ):
        stages = sum(len(ZERO_STAGES) - (dtype != "fp32") for dtype in model)
        own = kernels.count(device, sizes, formats, model) + stages * len(MODELS)
        assert FIGURES[device] == own
        assert ENGINES[device] == stages * len(MODELS)
        twice = len(model) * (len(sizes.sequences) + len(sizes.blocks))
        assert MORE_SLICES[device] == (SLICES - 1) * stages * len(MODELS) + twice
    assert FIGURES["collectives"] == len(collectives.KINDS) * len(collectives.CPU_BYTES)
    assert len(collectives.CPU_BYTES) == len(collectives.GPU_BYTES)


def test_ranks_are_started_as_runs_use_the_machine():
    """Without GPUs, one rank measures with all cores and two ranks with half each, and collectives run on
    more ranks. With GPUs, one GPU is measured first, and then all.
    """
    both, own, between = ["kernels", "steps"], FIGURES["cpu"], FIGURES["collectives"]
    assert plan_of("cpu", 1) == [(1, 1, both, own)]
    assert plan_of("cpu", 8) == [
        (1, 8, both, own),
        (2, 4, [*both, "collectives"], own + between),
        (4, 2, ["collectives"], between),
        (8, 1, ["collectives"], between),
    ]
    assert plan_of("gpu", 8) == [(1, 1, both, FIGURES["gpu"]), (8, 1, ["collectives"], between)]
    assert plan_of("gpu", 1) == [(1, 1, both, FIGURES["gpu"])]


@pytest.mark.slow
def test_two_processes_measure_collectives_between_them():
    """Two processes measure collectives; rank 0 returns a result for each kind and size."""
    work = {"device": "cpu", "parts": ["collectives"], "model_formats": [], **NO_TIME}
    found = list(run_ranks(2, 1, work, time.monotonic() + 600))
    pairs = {(figure["collective"], figure["bytes"]) for figure in found}
    assert len(found) == len(pairs) == FIGURES["collectives"]
    assert all(figure["ranks"] == 2 and figure["seconds"] > 0 for figure in found)


@pytest.mark.slow
def test_the_last_output_of_a_failed_rank_come_back():
    work = {"device": "cpu", "parts": None, "model_formats": [], **NO_TIME}
    with pytest.raises(JobError) as raised:
        list(run_ranks(1, 1, work, time.monotonic() + 600))
    assert "the calibration with 1 rank failed; exit codes by rank: [1]." in str(raised.value)
    assert "TypeError" in str(raised.value)
