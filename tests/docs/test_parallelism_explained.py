"""docs/parallelism-explained.md and docs/glossary.md: their examples run, and what they name is there."""

import doctest
import re
from pathlib import Path

import pytest

from nbtrain.config.arithmetic.flops import hardware_flops_per_token, model_flops_per_token
from nbtrain.config.keys import field_keys
from nbtrain.config.load import load
from nbtrain.planner.duration import bubble_fraction

DOCS = Path(__file__).parents[2] / "docs"
EXPLAINED = (DOCS / "parallelism-explained.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", GLOSSARY, re.M)


def test_every_example_gives_what_the_page_says():
    """From the first to the last in one session, as a reader would type them."""
    result = doctest.testfile(str(DOCS / "parallelism-explained.md"), module_relative=False)
    assert result.failed == 0 and result.attempted == EXPLAINED.count(">>> ") >= 30


@pytest.mark.parametrize("page", [EXPLAINED, GLOSSARY], ids=["explained", "glossary"])
def test_every_field_is_there(page):
    """A field that is renamed is noticed."""
    named = set(re.findall(r"`((?:parallel|model|precision|batch|lr_schedule|resources)\.[\w.]+)", page))
    assert named and named <= set(field_keys())


def test_every_page_is_there():
    """Links of both pages, and the links to them."""
    for page in (EXPLAINED, GLOSSARY):
        assert [link for link in re.findall(r"\]\(([\w.-]+\.md)\)", page) if not (DOCS / link).exists()] == []
    for place in (DOCS / "parallelism.md", DOCS / "README.md"):
        assert "parallelism-explained.md" in place.read_text() and "glossary.md" in place.read_text()


def test_the_glossary_is_sorted_and_says_each_word_once():
    names = [name.lower() for name, _ in WORDS]
    assert names == sorted(set(names)) and len(names) > 40
    assert len(WORDS) == GLOSSARY.count("| **")


def test_words_of_the_explanation_are_in_the_glossary():
    """What a reader meets first is looked up there."""
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
    """The page's formula leaves out that the last stage makes the logits: the plan's bubble is no smaller."""
    config = load("gpt-13b-4xdp-4xpp-4xtp")
    assert config.parallel.activation_checkpointing.granularity == "full"
    # The glossary's third: the logits are not computed again.
    assert 1.3 < hardware_flops_per_token(config) / model_flops_per_token(config) < 4 / 3
    stages, micro = config.parallel.pipeline_parallel_size, config.accumulation_steps
    formula = (stages - 1) / (micro + stages - 1)
    assert formula <= bubble_fraction(config) <= 1.3 * formula
