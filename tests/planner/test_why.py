"""`nbtrain plan --why`: every number has a formula, and evaluating the formulas gives the plan's numbers."""

import re

import pytest

from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.terms import Term, total
from nbtrain.planner.why import value_in_unit

RUNS = ("gpt-tiny", "gpt-125m", "gpt-13b-4xdp-4xpp-4xtp")


def sections(run, *overrides):
    made = plan(load(run, list(overrides)), use_measured=False)
    return made, made.why().sections


@pytest.mark.parametrize("run", RUNS)
def test_the_formulas_add_up_to_the_plan(run):
    made, found = sections(run)
    assert total(found["Model"], "parameters") == made.parameters.total
    assert total(found["Memory of the fullest rank"], "bytes") == pytest.approx(
        made.memory.total_bytes, abs=1
    )
    assert total(found["A step"], "seconds") == pytest.approx(made.duration.step.seconds)
    assert total(found["The run"], "seconds") == pytest.approx(made.duration.seconds)
    assert total(found["Disk"], "bytes") == made.disk.checkpoints_bytes
    if run != "gpt-tiny":
        cost = {term.name: term.value for term in found["Cost"]}
        assert cost["GPU hours"] == made.cost.device_hours
        assert cost["GPUs"] == pytest.approx(made.cost.money)
        assert cost["energy"] == pytest.approx(made.cost.energy_kwh)


@pytest.mark.parametrize(
    ("run", "title", "name", "formula"),
    [
        ("gpt-125m", "Model", "word_embeddings", "52,096 padded vocabulary x 768 hidden"),
        (
            "gpt-125m",
            "Model",
            "attention",
            "12 layers x (768 x (768 + 2 x 768) query, key and value + 768 x 768 projection + 3,072 biases)",
        ),
        (
            "gpt-125m",
            "Batch",
            "tokens a step",
            "256 sequences x 2,048 tokens, where 256 = 16 micro batch x 1 data parallel x 16 accumulation",
        ),
        ("gpt-125m", "Batch", "steps", "2,500,000,000 tokens / 524,288 tokens per step, rounded up"),
        (
            "gpt-tiny",
            "Model",
            "layernorm",
            "(2 x 4 layers + 1) norms x 256 + 4 layers x 128 in head norms",
        ),
        ("gpt-13b-4xdp-4xpp", "Cost", "GPUs", None),
        ("gpt-tiny", "A step", "compute / attention", None),
    ],
)
def test_a_formula_has_its_numbers(run, title, name, formula):
    [term] = [term for term in sections(run)[1][title] if term.name == name]
    assert formula is None or term.formula == formula
    assert "inf" not in term.formula.split() and "e+" not in term.formula
    assert term.source


def test_a_ramp_up_and_a_run_without_a_device_are_explained():
    ramp = ["batch.rampup={start_batch_size: 64, batch_size_increment: 64, ramp_samples: 100000}"]
    steps = {term.name: term for term in sections("gpt-125m", *ramp)[1]["Batch"]}["steps"]
    assert steps.formula.endswith("rounded up, plus steps for the smaller batches of the ramp-up")
    unknown = sections("gpt-125m", "resources.gpu_type=null")[1]
    assert not {"A step", "The run", "Cost"} & set(unknown)


def test_the_plan_opens_to_its_formulas_in_a_notebook():
    made, _ = sections("gpt-125m")
    page = made._repr_html_()
    assert re.search(r"<details><summary[^>]*>Why: every formula</summary>", page)
    assert "word_embeddings: 40,009,728 parameters" in page
    assert str(made.why()).startswith("Formulas of the plan of gpt-125m\n\nModel\n  word_embeddings  ")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Term("x", 2**30, "bytes", "", ""), "1.0 GiB"),
        (Term("x", 0.00823, "seconds", "", ""), "0.00823 s"),
        (Term("x", 33.17, "seconds", "", ""), "33.2 s"),
        (Term("x", 7200, "seconds", "", ""), "2.0 h"),
        (Term("x", 41611.2, "kWh", "", ""), "41,611 kWh"),
        (Term("x", 20.21, "", "", ""), "20.2"),
    ],
)
def test_values_are_shown_in_their_units(term, text):
    assert value_in_unit(term) == text


@pytest.mark.parametrize(
    ("settings", "kernel"),
    [
        ("{}", "flash attention 3, causal half"),
        ("{attention_backend: math}", "attention that keeps its scores"),
        (
            "{window_size: 512, attention_dropout: 0}",
            "flash attention 3, causal half; in 100% of the layers, a sliding window of 512 tokens",
        ),
        (
            "{window_size: 512, window_attn_skip_freq: 2}",
            "flash attention 3, causal half; in 50% of the layers, all pairs, because the sliding window is "
            "a mask",
        ),
        (
            "{attn_logit_softcapping: 50, attention_dropout: 0}",
            "nbtrain's kernel for capped scores, causal half",
        ),
    ],
)
def test_the_kernel_of_attention_is_named(settings, kernel):
    [term] = [
        one for one in sections("gpt-125m", f"model={settings}")[1]["A step"] if "attention" in one.name
    ]
    assert term.formula.endswith(f" ms: {kernel}")
