"""The step time from a calibration: an engine whose four unknown times are fitted, sizes between measured
ones, and each layout's parts.
"""

from dataclasses import replace

import pytest

from nbtrain.config.load import load
from nbtrain.planner.calibration.calibrated_step import PARTS, calibrated_step, overhead_of, power_between
from nbtrain.planner.calibration.calibration import Calibration
from nbtrain.planner.setup.setup import setup_of

# Seconds of the machine below: of a block per token and h^2, and of the ends per token and h v.
BLOCK, ENDS = 1e-9, 2e-10
STEP, MICRO_BATCH, LAYER, PARAMETER = 0.01, 0.002, 0.003, 4e-9
REDUCE_LATENCY, REDUCE_BYTE = 0.0, 1e-9
MODELS = {"base": (1, 128, 1), "micro": (1, 128, 4), "layers": (9, 128, 1), "wide": (1, 512, 1)}


def block(hidden, tokens):
    return BLOCK * tokens * hidden**2


def ends(hidden, vocabulary, tokens):
    return ENDS * tokens * hidden * vocabulary


def parameters(layers, hidden, vocabulary=1024, positions=256):
    """Return the number of parameters: 12 h^2 + 13 h per block, plus embeddings, positions and the final
    norm.
    """
    return layers * (12 * hidden**2 + 13 * hidden) + (vocabulary + positions + 2) * hidden


@pytest.fixture
def calibration():
    """Return a calibration whose times follow the formulas above exactly."""
    figures = []
    for ranks in (1, 2):
        each = {"ranks": ranks, "dtype": "fp32"}
        for hidden in (128, 512):
            for tokens in (256, 2048):
                sizes = {**each, "hidden": hidden, "tokens": tokens}
                whole = block(hidden, tokens)
                figures.append({"what": "block", **sizes, "forward": whole / 4, "backward": 3 * whole / 4})
                figures.append({"what": "norms", **sizes, "seconds": 0.0})
            for vocabulary in (1024, 16_384):
                seconds = ends(hidden, vocabulary, 1024)
                figures.append(
                    {
                        "what": "ends",
                        **each,
                        "hidden": hidden,
                        "vocabulary": vocabulary,
                        "tokens": 1024,
                        "seconds": seconds,
                    }
                )
        for stage in (0, 1, 3):
            for name, (layers, hidden, micro) in MODELS.items():
                arithmetic = micro * (layers * block(hidden, 256) + ends(hidden, 1024, 256))
                engine = STEP + micro * (MICRO_BATCH + LAYER * layers)
                engine += PARAMETER * parameters(layers, hidden)
                figures.append(
                    {
                        "what": "step",
                        **each,
                        "model": name,
                        "zero_stage": stage,
                        "layers": layers,
                        "hidden": hidden,
                        "vocabulary": 1024,
                        "tokens": 256,
                        "micro_batches": micro,
                        "seconds": arithmetic + engine,
                    }
                )
    for kind in ("all_reduce", "send_recv"):
        for size in (1 << 10, 1 << 24):
            seconds = REDUCE_LATENCY + REDUCE_BYTE * size
            figures.append(
                {"what": "collective", "ranks": 2, "collective": kind, "bytes": size, "seconds": seconds}
            )
    return Calibration("X", "2026-11-20", 90.0, figures)


@pytest.fixture
def setup(workspace, repository):
    (workspace / "examples").symlink_to(repository / "examples")
    return setup_of(load("gpt3-tiny"))


def test_four_models_give_the_four_unknowns_of_an_engine(calibration):
    models = {one["model"]: one for one in calibration.of("step", ranks=1, zero_stage=1)}
    found = overhead_of(models, calibration, 1)
    assert found.step == pytest.approx(STEP) and found.micro_batch == pytest.approx(MICRO_BATCH)
    assert found.block == pytest.approx(LAYER) and found.parameter == pytest.approx(PARAMETER)


def test_one_rank_takes_what_the_formulas_say(setup, calibration):
    """A step on one rank takes the time that the formulas give, for 4 blocks of width 256, 8 x 256 tokens and
    a vocabulary of 1,024.
    """
    parts = calibrated_step(setup, calibration)
    assert tuple(parts) == PARTS
    assert parts["compute"] == pytest.approx(4 * block(256, 2048) + ends(256, 1024, 2048))
    assert parts["optimizer"] == pytest.approx(PARAMETER * parameters(4, 256))
    assert parts["host"] == pytest.approx(STEP + MICRO_BATCH + 4 * LAYER)
    assert sum(parts.values()) == pytest.approx(parts["compute"] + parts["optimizer"] + parts["host"])


def test_muons_products_go_at_the_best_measured_rate(setup, calibration):
    """Muon's products are planned at the best measured rate; with ZeRO 1, two ranks share them."""
    flops = 4 * 5 * (4 * 6 + 2 * 18) * 256**3
    for ranks, rate in ((1, 1e11), (2, 5e10)):
        calibration.figures.append({"what": "product", "ranks": ranks, "dtype": "fp32", "flops": rate})
    for changes, seconds in (
        ({}, flops / 1e11),
        ({"zero_stage": 1, "data_parallel_size": 2}, flops / 2 / 5e10),
    ):
        adamw, muon = (
            calibrated_step(replace(setup, **changes, muon_steps=steps), calibration) for steps in (0, 5)
        )
        assert muon["optimizer"] - adamw["optimizer"] == pytest.approx(seconds)


def test_full_recomputation_takes_each_forward_pass_once_more(setup, calibration):
    parts = calibrated_step(replace(setup, recompute="full"), calibration)
    assert parts["recompute"] == pytest.approx(4 * block(256, 2048) / 4)


def test_tensor_ranks_share_the_blocks_and_wait_for_sums(setup, calibration):
    """Each of two tensor-parallel ranks computes half of the products and waits for four all-reduces per
    block and two for embedding and loss.
    """
    alone = calibrated_step(setup, calibration)
    parts = calibrated_step(replace(setup, tensor_parallel_size=2), calibration)
    assert parts["compute"] == pytest.approx(alone["compute"] / 2)
    assert parts["tensor"] == pytest.approx((4 * 4 + 2) * REDUCE_BYTE * 4 * 2048 * 256)


def test_a_pipeline_waits_for_its_slowest_stage(setup, calibration):
    """A pipeline of two stages with four micro batches takes 4 times as long as the slower stage, plus the
    faster stage once.
    """
    piped = replace(setup, pipeline_parallel_size=2, stage_layers=(2, 2), micro_batch_size=2)
    parts = calibrated_step(piped, calibration)
    fast = 2 * (block(256, 512) + LAYER)
    slow = fast + ends(256, 1024, 512)
    busy = 4 * (fast + slow) / 2
    assert parts["bubble"] == pytest.approx(4 * slow + fast - busy)
    assert parts["pipeline"] == pytest.approx(2 * 5 * REDUCE_BYTE * 4 * 512 * 256)


def test_setups_that_were_not_measured_are_left_to_the_assumed_rates(setup, calibration):
    assert calibrated_step(replace(setup, dtype="fp16"), calibration) is None
    assert calibrated_step(replace(setup, on_gpu=True), calibration) is None
    assert calibrated_step(replace(setup, offload_optimizer="cpu"), calibration) is None
    assert calibrated_step(replace(setup, nodes=2), calibration) is None
    assert calibrated_step(replace(setup, lora_rank=8), calibration) is None
    assert calibrated_step(replace(setup, prefers=True), calibration) is None


def test_muon_without_a_rate_of_products_is_left_to_the_assumed_rates(setup, calibration):
    figures = [one for one in calibration.figures if one["what"] != "product"]
    assert calibrated_step(replace(setup, muon_steps=5), replace(calibration, figures=figures)) is None
    assert calibrated_step(setup, replace(calibration, figures=figures)) is not None


def test_between_two_sizes_seconds_are_a_power_of_the_size():
    points = [(1.0, 2.0), (4.0, 32.0)]
    assert power_between(points, 2.0) == pytest.approx(8.0)
    assert power_between(points, 8.0) == pytest.approx(128.0)
    assert power_between(points, 0.5) == pytest.approx(0.5)
