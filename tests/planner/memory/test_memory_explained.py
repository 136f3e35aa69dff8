"""The terms that explain a memory estimate add up to each of its parts, and show their numbers."""

import pytest

from nbtrain.config.load import load
from nbtrain.planner.memory import PARTS, estimate
from nbtrain.planner.memory.explain import explain
from nbtrain.planner.setup.setup import setup_of
from nbtrain.planner.setup.terms import below, total

SETUPS = {
    "125M": ("gpt-125m", []),
    "on a CPU": ("gpt-tiny", []),
    "1.3B with ZeRO 2": ("gpt-1-3b-4xdp", ["parallel.zero_stage=2"]),
    "a pipeline": ("gpt-13b-4xdp-4xpp", []),
    "ZeRO 3, offloaded": (
        "gpt-125m-4xdp",
        ["parallel.zero_stage=3", "parallel.offload_optimizer.device=cpu"],
    ),
    "autocast": ("gpt-125m", ["precision.dtype=bf16", "precision.autocast=true"]),
    "Muon": ("gpt-125m-4xdp", ["optimizer.type=Muon"]),
    "Muon with ZeRO 3": ("gpt-125m-4xdp", ["optimizer.type=Muon", "parallel.zero_stage=3"]),
    "scores": ("gpt-125m", ["model.attention_backend=math"]),
}


@pytest.mark.parametrize("what", SETUPS)
def test_the_terms_are_the_estimate(what):
    run, overrides = SETUPS[what]
    setup = setup_of(load(run, overrides))
    found, terms = estimate(setup), explain(setup)
    assert total(terms, "bytes") == pytest.approx(found.total_bytes, abs=1)
    for part in PARTS:
        assert total(below(terms, part), "bytes") == pytest.approx(found.parts[part], abs=1), part
    assert all(term.formula and term.source for term in terms)


def test_a_formula_has_its_numbers():
    terms = {term.name: term for term in explain(setup_of(load("gpt-125m-4xdp", ["parallel.zero_stage=2"])))}
    assert terms["weights"].formula == "126,638,592 parameters per rank x 2 bytes"
    assert terms["gradients"].formula == "126,638,592 parameters per rank x 4 bytes (fp32 sums) / 4 ranks"
    assert terms["master_copy"].formula == "126,638,592 parameters per rank x 4 bytes (fp32) / 4 ranks"
    assert terms["optimizer"].formula == (
        "126,638,592 parameters per rank x 8 bytes (two fp32 moments) / 4 ranks + 8: step counts, and "
        "padding of the flat buffers"
    )
    with_muon = load("gpt-125m-4xdp", ["parallel.zero_stage=2", "optimizer.type=Muon"])
    terms_with_muon = {term.name: term for term in explain(setup_of(with_muon))}
    assert terms_with_muon["optimizer"].formula == (
        "126,638,592 parameters per rank x 8 bytes (two fp32 moments) / 4 ranks - 84,934,648: Muon has one "
        "moment per matrix; step counts; padding of the flat buffers"
    )
    assert terms["activations / attention"].formula.startswith("32,768 tokens x 768 hidden x ")
