"""Batch sizes that change at thresholds in tokens."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.batch_schedule import BatchSchedule, StepSizes
from nbtrain.config.load import load
from nbtrain.config.rules.check import find_problems
from nbtrain.planner.plan import plan

UPSTREAM = "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"


def test_thresholds_are_tokens():
    """Thresholds are rounded down to whole sequences; K, M, B and T are exact powers of ten."""
    assert StepSizes.parse("0:4 3K:8 1.5M:12 2.3B:16 1.5T:20", 2048).parts == (
        (0, 4),
        (1, 8),
        (732, 12),
        (2_300_000_000 // 2048, 16),
        (1_500_000_000_000 // 2048, 20),
    )


def test_each_size_holds_from_its_threshold_on():
    schedule = BatchSchedule(16, 10, 1000, StepSizes.parse("0:4 80:8 200:16", 10))
    assert [schedule.size_at(at) for at in (0, 7, 8, 19, 20, 10_000)] == [4, 4, 8, 8, 16, 16]
    # 4, 4 | 8, 8 (the second begins at 16) | 16 from 24 on.
    assert [schedule.samples_after(step) for step in range(7)] == [0, 4, 8, 16, 24, 40, 56]
    assert [schedule.step_at(at) for at in (0, 3, 4, 23, 24, 39, 40)] == [0, 0, 1, 3, 4, 4, 5]
    assert schedule.total_steps == 9 and schedule.total_samples == 104


def test_the_schedule_of_175b_upstream():
    """The upstream schedule for 175B has 73,242 steps of 16 in its first 2.4B tokens."""
    config = load("gpt-175b", {"batch.rampup": None, "batch.step_batch_size_schedule": UPSTREAM}, check=False)
    assert find_problems(config) == []
    sizes = config.batch_schedule
    assert sizes.size_at(0) == 16 and sizes.step_at(2_400_000_000 // 2048) == 73_242
    assert [sizes.size_at(billions * 10**8 // 2048) for billions in (23, 24, 48, 72, 96, 119, 120)] == [
        16,
        320,
        624,
        928,
        1232,
        1232,
        1536,
    ]
    assert plan(config).sections()["Training"]["ramp-up"] == f"{UPSTREAM} (tokens:sequences)"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("0:64 1M:128", "must end at global_batch_size(256), but ends at 128."),
        (
            "0:64 2K:128 3K:256",
            "must list its sizes in order, but size number 2 starts at sequence 0 and the size before it at "
            "sequence 0 (tokens / seq_length(2048), rounded down).",
        ),
        (
            "0:24 1M:256",
            "contains the size 24, which is not a multiple of micro_batch_size(16) * data_parallel_size(1) "
            "= 16; nearest: 16, 32.",
        ),
    ],
)
def test_what_breaks_the_rule(text, problem):
    config = load("gpt-125m", {"batch.step_batch_size_schedule": text}, check=False)
    message = str(find_problems(config)[0])
    where = f"override batch.step_batch_size_schedule={text}: batch.step_batch_size_schedule = {text}"
    assert message == f"{where}\n  {problem}"


def test_two_ways_to_grow_are_refused():
    [finding] = find_problems(load("gpt-175b", {"batch.step_batch_size_schedule": UPSTREAM}, check=False))
    assert finding.message.endswith(
        "and batch.rampup both increase the batch size. Set one of the two to null."
    )


@pytest.mark.parametrize("text", ["16 32", "1:16 2B:32", "0:0", "0:16, 2B:32", "0:16 2X:32", ""])
def test_another_form_is_reported(text):
    with pytest.raises(ConfigError, match=r"TOKENS:SEQUENCES pairs, the first at 0 tokens"):
        load("gpt-125m", {"batch.step_batch_size_schedule": text})
