"""The examples of docs/parallelism-explained.md and docs/glossary.md run, and the names in them exist."""

import doctest
import re
from pathlib import Path

import pytest

from nbtrain.config.arithmetic.flops import hardware_flops_per_token, model_flops_per_token
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.planner.time.duration import bubble_fraction

DOCS = Path(__file__).parents[2] / "docs"
EXPLAINED = (DOCS / "parallelism-explained.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", GLOSSARY, re.M)


def test_every_example_gives_what_the_page_says():
    """Every example gives the result shown on the page; all run in order in one session."""
    result = doctest.testfile(str(DOCS / "parallelism-explained.md"), module_relative=False)
    assert result.failed == 0 and result.attempted == EXPLAINED.count(">>> ") >= 30


@pytest.mark.parametrize("page", [EXPLAINED, GLOSSARY], ids=["explained", "glossary"])
def test_every_field_is_there(page):
    """Every field that a page names exists, so that a rename is detected."""
    named = set(re.findall(r"`((?:parallel|model|precision|batch|lr_schedule|resources)\.[\w.]+)", page))
    assert named and named <= set(field_keys())


def test_every_page_is_there():
    """Every link on both pages, and every link to them, leads to an existing page."""
    for page in (EXPLAINED, GLOSSARY):
        assert [link for link in re.findall(r"\]\(([\w.-]+\.md)\)", page) if not (DOCS / link).exists()] == []
    for place in (DOCS / "parallelism.md", DOCS / "README.md"):
        assert "parallelism-explained.md" in place.read_text() and "glossary.md" in place.read_text()


def test_the_glossary_is_sorted_and_says_each_word_once():
    names = [name.lower() for name, _ in WORDS]
    assert names == sorted(set(names)) and len(names) > 40
    assert len(WORDS) == GLOSSARY.count("| **")


def test_words_of_the_explanation_are_in_the_glossary():
    """Terms that the explanation introduces are in the glossary."""
    known = " ".join(name for name, _ in WORDS).lower()
    for word in (
        "ulysses",
        "bubble",
        "1f1b",
        "micro-batch",
        "all-reduce",
        "hpz",
        "local rank",
        "fsdp",
        "zero",
    ):
        assert word in EXPLAINED.lower() and word in known


def test_the_bubble_of_the_page_is_the_plan_of_equal_stages():
    """For equal stages, the page's formula for the bubble equals the plan; the
    planned bubble is never smaller.

    The last stage also computes the logits, so a real plan's bubble is larger.
    """
    config = load("gpt-13b-4xdp-4xpp-4xtp")
    assert config.parallel.activation_checkpointing.granularity == "full"
    # The glossary's third: the logits are not recomputed.
    assert 1.3 < hardware_flops_per_token(config) / model_flops_per_token(config) < 4 / 3
    stages, micro = config.parallel.pipeline_parallel_size, config.accumulation_steps
    formula = (stages - 1) / (micro + stages - 1)
    assert formula <= bubble_fraction(config) <= 1.3 * formula
