"""The table of incompatible kinds agrees with the rules, for runs with the settings of two kinds."""

import itertools

import pytest

from nbtrain.config.load import load
from nbtrain.config.rules.check import find_problems
from nbtrain.config.rules.combinations import BY_NAME, CLASHES, KINDS
from nbtrain.config.rules.pairing import Pairing, pairing

# Settings compatible with every kind; the settings of a pair are added.
PLAIN = {
    "parallel.zero_stage": 1,
    "precision.dtype": "fp32",
    "model.hidden_size": 64,
    "model.seq_length": 64,
    "model.attention_dropout": 0.0,
    "batch.global_batch_size": 8,
    "batch.micro_batch_size": 2,
    "resources.device": "gpu",
    "resources.gpus_per_node": 1,
}


def problems_of(found: Pairing) -> list[str]:
    config = load("gpt3-tiny", {**PLAIN, **found.settings}, check=False)
    if config.resources.device == "gpu":
        overrides = {"resources.gpus_per_node": config.world_size}
        config = load("gpt3-tiny", {**PLAIN, **found.settings, **overrides}, check=False)
    return [str(finding) for finding in find_problems(config)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_rules_say_what_the_table_says(kind):
    """find_problems refuses a pair of kinds exactly if the table has a reason for
    it, and gives that reason.
    """
    for other in KINDS:
        found = pairing(kind, other)
        if not found.pair:
            continue
        problems = problems_of(found)
        pair = f"{kind.name} with {other.name}: {found}"
        if found.reason is None:
            assert problems == [], pair
        elif "needs" not in found.reason:
            assert any(found.reason in problem for problem in problems), pair


def test_a_kind_without_what_it_needs_is_refused():
    """A kind without a setting that it needs is refused, and the message names the setting."""
    for kind in KINDS:
        if not kind.needs:
            continue
        lacking = {"parallel.zero_stage": 0, "precision.dtype": "fp32", "parallel.tensor_parallel_size": 1}
        problems = problems_of(Pairing(True, None, {**kind.settings, **lacking}))
        assert any(f"needs {kind.needs_words}, but " in problem for problem in problems), kind.name


def test_the_table_is_symmetric():
    for first, second in itertools.combinations(KINDS, 2):
        one, other = pairing(first, second), pairing(second, first)
        assert (one.pair, one.reason is None) == (other.pair, other.reason is None)


def test_what_the_reference_measured_as_right_is_allowed():
    """Combinations that are correct according to the reference measurements are allowed, e.g. TP x PP x DP
    with ZeRO 1.
    """
    for names in (
        ("tensor", "pipeline"),
        ("sequence", "pipeline"),
        ("tensor", "data"),
        *(
            (kind, f"zero{stage}")
            for kind in ("ulysses", "context", "tensor", "offload_optimizer_cpu")
            for stage in (1, 2, 3)
        ),
        ("ulysses", "zero0"),
        ("tensor", "zero0"),
        ("pipeline", "zero0"),
        ("ulysses", "data"),
        ("ulysses", "tensor"),
        ("ulysses", "sequence"),
        ("ulysses", "pipeline"),
        *(("context", kind) for kind in ("zero0", "data", "tensor", "sequence", "pipeline")),
        ("autocast", "zero0"),
        ("offload_optimizer_cpu", "pipeline"),
    ):
        assert pairing(BY_NAME[names[0]], BY_NAME[names[1]]) == Pairing(
            True, None, pairing(BY_NAME[names[0]], BY_NAME[names[1]]).settings
        ), names


def test_every_refusal_is_of_known_kinds():
    assert {name for refusal in CLASHES for name in (refusal.kind, *refusal.others)} <= set(BY_NAME)


def test_a_fix_names_what_is_refused_alone():
    """The fix changes only the refused setting: for quantized ZeRO++ with Muon, offloading stays."""
    fixes = {refusal.others: refusal.fix for refusal in CLASHES if refusal.kind == "muon"}
    assert fixes[("qwz", "qgz")] == (
        "Set zero_quantized_weights: false and zero_quantized_gradients: false, or optimizer.type: AdamW."
    )
    assert (
        fixes[("offload_param_nvme",)]
        == "Set offload_param.device: cpu and nvme_path: null, or optimizer.type: AdamW."
    )


@pytest.mark.parametrize(
    ("settings", "fixes"),
    [
        # What applies only with a kind is turned off with it.
        (
            {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}, "zero_stage": 2},
            ["Set device: none and nvme_path: null, or set parallel.zero_stage: 3."],
        ),
        (
            {"zero_hpz": True, "zero_hpz_partition_size": 1, "zero_stage": 1},
            ["Set zero_hpz: false and zero_hpz_partition_size: null, or set parallel.zero_stage: 3."],
        ),
        # A pipeline has no ZeRO 2 or 3.
        (
            {"offload_optimizer": {"device": "cpu"}, "pipeline_parallel_size": 2, "zero_stage": 0},
            ["Set device: none, or set parallel.zero_stage: 1."],
        ),
        (
            {"zero_quantized_weights": True, "pipeline_parallel_size": 2, "zero_stage": 1},
            ["Set zero_quantized_weights: false."],
        ),
        # What needs ZeRO 3 is turned off with it.
        (
            {"offload_param": {"device": "cpu"}, "pipeline_parallel_size": 2, "zero_stage": 3},
            ["Set zero_stage: 1 and offload_param.device: none."],
        ),
    ],
)
def test_a_fix_is_accepted_as_it_stands(settings, fixes):
    """The settings of a fix break no other rule of the run."""
    parallel = {**PLAIN, **{f"parallel.{key}": value for key, value in settings.items()}}
    config = load("gpt3-tiny", parallel, check=False)
    config = load("gpt3-tiny", {**parallel, "resources.gpus_per_node": config.world_size}, check=False)
    problems = [str(finding) for finding in find_problems(config)]
    assert [text[text.find("Set ") :] for text in problems] == fixes, problems
