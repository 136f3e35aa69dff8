"""Runs that may be launched but will disappoint: each warning as a whole."""

import pytest

from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.config.rules.warnings import RULES, find_warnings
from nbtrain.planner.plan import plan

HPZ = ["parallel.zero_stage=3", "parallel.zero_hpz=true"]
TWO_MACHINES = ["resources.nodes=2", "resources.gpus_per_node=2"]

WARNED = {
    "a copy of fewer ranks than a machine has": (
        [*HPZ, "parallel.zero_hpz_partition_size=2"],
        "override parallel.zero_hpz_partition_size=2: parallel.zero_hpz_partition_size = 2, and a machine "
        "has 4 ranks: parameters are gathered from fewer ranks than could share them.",
    ),
    "a copy across machines": (
        [*HPZ, *TWO_MACHINES, "parallel.zero_hpz_partition_size=4"],
        "override parallel.zero_hpz_partition_size=4: parallel.zero_hpz_partition_size = 4, and a machine "
        "has 2 ranks: parameters are gathered across machines anyway.",
    ),
    "a copy on one machine": (
        HPZ,
        "override parallel.zero_hpz=true: parallel.zero_hpz = true: on one machine the second copy takes "
        "memory and saves no traffic.",
    ),
    "quantized gradients on one machine": (
        ["parallel.zero_stage=3", "parallel.zero_quantized_gradients=true"],
        "override parallel.zero_quantized_gradients=true: parallel.zero_quantized_gradients = true: on one "
        "machine gradients are not quantized; DeepSpeed quantizes them between machines only.",
    ),
    "a best checkpoint that is rarely looked for": (
        ["checkpoint.keep_best=true", "checkpoint.save_interval_steps=150"],
        "override checkpoint.keep_best=true: checkpoint.keep_best = true: a checkpoint and a validation fall "
        "on the same step only every 300 steps, with save_interval_steps(150) and eval_interval_steps(100); "
        "make save_interval_steps a multiple of eval_interval_steps.",
    ),
    "a folder of offloading that is not here": (
        [
            "parallel.zero_stage=3",
            "parallel.offload_param.device=nvme",
            "parallel.offload_param.nvme_path=/no/such/folder",
        ],
        "override parallel.offload_param.nvme_path=/no/such/folder: parallel.offload_param.nvme_path = "
        "/no/such/folder: no such folder on this machine. The run is not started unless the folder exists on "
        "the machine that trains.",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_a_warning_says_where_and_why(case):
    """The whole text, and no other warning; the rules allow the run."""
    overrides, expected = WARNED[case]
    assert find_warnings(load("gpt-125m-4xdp", overrides)) == [expected]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [*HPZ, *TWO_MACHINES],
        [*HPZ, *TWO_MACHINES, "parallel.zero_hpz_partition_size=2"],
        ["checkpoint.keep_best=true", "checkpoint.save_interval_steps=200"],
    ],
)
def test_what_is_well_set_is_not_warned_of(overrides):
    assert find_warnings(load("gpt-125m-4xdp", overrides)) == []


def test_a_folder_of_offloading_that_is_here_is_not_warned_of(tmp_path):
    overrides = {"zero_stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}}
    assert find_warnings(load("gpt-125m-4xdp", {"parallel": overrides})) == []


def test_every_rule_warns_in_some_case():
    warning = set()
    for overrides, _ in WARNED.values():
        config = load("gpt-125m-4xdp", overrides)
        warning |= {rule for rule in RULES if any(rule(config))}
    assert warning == set(RULES)


def test_check_and_plan_show_them(capsys):
    """`nbtrain check` prints a warning, and a plan lists it."""
    overrides, expected = WARNED["a copy on one machine"]
    assert main(["check", "gpt-125m-4xdp", *overrides]) == 0
    assert capsys.readouterr().out == (
        f"gpt-125m-4xdp: every field and every rule holds.\nWarning: {expected}\n"
    )
    assert expected in plan(load("gpt-125m-4xdp", overrides)).warnings
