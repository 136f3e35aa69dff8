"""Interactive changes of a layout: every change leads to a legal layout, and its consequences are shown.

tests/benchmarks/search.py measures the speed.
"""

import itertools
import random

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.rules.check import find_problems
from nbtrain.planner.search.legal import Cut, problems
from nbtrain.planner.search.what_if import LABELS, WhatIf, nearest, what_if


@pytest.fixture(scope="module")
def start() -> WhatIf:
    return what_if("gpt-13b-4xdp-4xpp-4xtp")


def test_it_starts_at_the_runs_own_layout(start):
    """The controls start with the layout and number format of the run."""
    assert start.layout.words == "TP 4 x PP 4 x DP 4, ZeRO 1, micro-batch 16, full recomputation"
    assert start.space.base.dtype == "fp16"
    assert start.title == "gpt-13b-4xdp-4xpp-4xtp on 64 x A100-80GB"


def test_a_layout_that_is_not_legal_starts_at_the_nearest():
    """If the run's layout does not use exactly 8 GPUs, the controls start with the closest layout that
    does.
    """
    state = what_if("gpt-13b-4xdp-4xpp-4xtp", gpus=8)
    assert problems(state.space, state.layout) == [] and state.gpus == 8


def test_every_offered_value_can_be_chosen_and_the_layout_is_legal(start):
    """In a random walk over all controls, each offered value can be set, the layout stays legal, and changes
    of other controls are reported.
    """
    state, draw = start, random.Random(11)
    for name in itertools.islice(itertools.cycle(LABELS), 48):
        before, value = state, draw.choice(state.control(name).values)
        state = state.changed(name, value)
        if name == "gpus":
            assert state.gpus == value
        assert state.value(name) == value
        assert find_problems(state.config) == [], (name, value)
        differing = [other for other in LABELS if other != name and before.value(other) != state.value(other)]
        assert len(state.moved) == len(differing)


def test_a_change_moves_as_little_as_it_can(start):
    """A change affects as few other values as possible: TP keeps PP and reduces DP, ZeRO 3 turns the pipeline
    off, and hpZ sets ZeRO 3 without model parallelism.
    """
    assert start.changed("tensor", 8).layout.cut == Cut(8, 4, 1, 2)
    assert start.changed("tensor", 8).moved == ("DP 4 -> 2",)
    assert start.changed("zero", 3).layout.cut == Cut(4, 1, 1, 16)
    assert start.changed("zero", 3).moved == ("DP 4 -> 16", "PP 4 -> 1")
    assert start.changed("hpz", True).layout.options.zero_stage == 3
    assert start.changed("hpz", True).layout.cut == Cut(1, 1, 1, 64)
    assert start.changed("micro", 8).moved == ()
    assert start.changed("micro", 16).moved == () and start.changed("micro", 16).layout == start.layout


def test_values_that_move_others_are_marked(start):
    """Values that would change other controls are marked: ZeRO 2 and 3 turn the pipeline off, but PP 2
    changes only DP.
    """
    assert start.control("zero").values == (1, 2, 3) and start.control("zero").free == (True, False, False)
    assert start.control("tensor").values == (1, 2, 4, 8)
    assert all(start.control("tensor").free)
    assert start.control("sequence").values == (False, True)


def test_a_value_that_nothing_has_is_refused(start):
    """A value that no legal layout has is rejected, and the message lists the legal values."""
    with pytest.raises(ConfigError) as error:
        start.changed("tensor", 3)
    assert str(error.value) == (
        "no legal layout of gpt-13b-4xdp-4xpp-4xtp on 64 x A100-80GB has TP = 3. Legal values are 1, 2, 4, 8."
    )
    with pytest.raises(ConfigError, match=r"'tp' is not a control.* gpu_type, gpus, network, "):
        start.changed("tp", 2)


def test_another_gpu_changes_format_and_memory(start):
    """Selecting another GPU changes the number format and the memory limit: a V100 has fp16 and 32 GB, and
    less fits on a 40 GB A100 than on an 80 GB one.
    """
    state = start.changed("gpu_type", "V100-32GB")
    assert state.space.base.dtype == "fp16" and state.gpu_type == "V100-32GB"
    assert state.layout == start.layout
    small = start.changed("gpu_type", "A100-40GB").shown()["memory"]
    assert small["device_bytes"] == start.shown()["memory"]["device_bytes"] // 2


def test_what_is_shown_leads_with_three_words_and_adds_up(start):
    """The summary begins with fit, time and disk space; the parts shown for each stage and for the step add
    up to the totals.
    """
    shown = start.changed("pipeline", 32).shown()
    assert [word[0] for word in shown["words"]] == ["fits", "time", "disk"]
    assert len(start.shown()["memory"]["stages"]) == 4
    stages = shown["memory"]["stages"]
    assert len(stages) <= 17 and stages[0]["label"] == "stage 0" and stages[-1]["label"] == "stage 31"
    assert [part[0] for part in shown["time"]] == [
        "compute",
        "recomputation",
        "bubble",
        "communication",
        "optimizer and host",
    ]
    rows = dict(shown["rows"])
    assert {"model", "batch", "GPU memory", "step", "MFU", "bubble", "communication"} <= set(rows)
    seconds = sum(part[1] for part in shown["time"])
    assert rows["step"].startswith(f"{seconds:.3g} s, ")
    offloaded = start.changed("offload", "optimizer").shown()
    assert "host memory" in dict(offloaded["rows"])


def test_the_first_word(start):
    """The verdict is good, tight or bad depending on the device's headroom, and bad if there is too little
    host memory.
    """
    from dataclasses import replace

    from nbtrain.planner.memory import estimate, fit_rating

    memory = estimate(start.space.setup(start.layout))
    need = memory.total_bytes
    assert fit_rating(replace(memory, device_bytes=2 * need)) == ["fits", "yes, 50% headroom", "good"]
    assert fit_rating(replace(memory, device_bytes=int(need * 1.04)))[2] == "tight"
    assert fit_rating(replace(memory, device_bytes=need - 2**30)) == ["fits", "no, 1.0 GiB too much", "bad"]
    assert fit_rating(replace(memory, device_bytes=None)) == ["fits", "not known", ""]
    unknown = replace(memory, device_bytes=2 * need, host_parts={"optimizer": 2**30}, host_bytes=None)
    assert fit_rating(unknown)[1] == "yes on the GPU, 50% headroom; the host memory is not known"
    lacking = replace(memory, device_bytes=2 * need, host_parts={"optimizer": 3 * 2**30}, host_bytes=2**30)
    assert fit_rating(lacking) == ["fits", "no, 2.0 GiB of host memory too much", "bad"]


def test_the_nearest_of_a_legal_layout_is_itself(start):
    """The closest layout to a legal layout is that layout itself."""
    assert nearest(start.space, start.layout) == start.layout
