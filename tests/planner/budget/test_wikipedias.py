"""Epochs of a Wikipedia that is not downloaded yet, and tokens per parameter against published models."""

import pytest

from nbtrain.base.errors import SubmitError
from nbtrain.cli.__main__ import main
from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.load import load
from nbtrain.jobs.checks.limits import refuse_run_over_limits
from nbtrain.planner.budget.wikipedias import WIKIPEDIAS, estimate_text
from nbtrain.planner.lint.training_lengths import LENGTHS, is_far
from nbtrain.planner.plan import plan

pytestmark = pytest.mark.usefixtures("workspace")


def repeated(config):
    rule = "dataset_is_not_repeated_too_often"
    return next((finding for finding in plan(config).findings if finding.rule == rule), None)


def test_260_billion_tokens_of_one_wikipedia_are_reported():
    """19.88 GiB of text at 4.0 to 4.8 bytes a token, of which the split trains on 949 of 1,000."""
    config = load("gpt-13b-4xdp-4xpp")
    planned = plan(config)
    text = 19.88 * GIB * 949 / 1000
    least, most = planned.text.epochs(260e9)
    assert (least, most) == (pytest.approx(260e9 * 4.0 / text), pytest.approx(260e9 * 4.8 / text))
    assert planned.epochs is None
    assert planned.sections()["Training"]["epochs"].startswith(
        "51.3 to 61.6, with 4.22B to 5.06B training tokens"
    )
    found = repeated(config)
    assert found.message.startswith(
        "The run reads its training text 51.3 to 61.6 times, but more than 4 passes add little"
    )
    assert "the en Wikipedia of 2023-06-01, 6,672,479 articles with 21.3 GB of text" in found.message
    assert "tensorflow/datasets" in found.message and "assuming 4 to 4.8 bytes per token" in found.message
    assert found.cost.hours > 0.9 * planned.duration.seconds / 3600


def test_check_reports_it_too(capsys):
    main(["check", "gpt-13b-4xdp-4xpp"])
    assert "51.3 to 61.6 times" in capsys.readouterr().out


def test_two_wikipedias_and_a_part_of_one():
    both = load("gpt-125m", {"data.sources": [{"kind": "wiki", "language": code} for code in ("de", "fr")]})
    one = {
        code: load("gpt-125m", {"data.sources": [{"kind": "wiki", "language": code}]})
        for code in ("de", "fr")
    }
    alone = [estimate_text(config) for config in one.values()]
    assert estimate_text(both).least_tokens == pytest.approx(sum(text.least_tokens for text in alone))
    half = {"kind": "wiki", "language": "de", "max_articles": WIKIPEDIAS["de"].articles // 2}
    assert estimate_text(load("gpt-125m", {"data.sources": [half]})).most_tokens == pytest.approx(
        alone[0].most_tokens / 2, rel=1e-5
    )


def test_another_language_is_a_range_that_is_assumed():
    config = load("gpt-125m", {"data.sources": [{"kind": "wiki", "language": "bg"}]})
    text = estimate_text(config)
    assert text.most_tokens > 1000 * text.least_tokens
    assert "not among the 20 largest" in text.basis and "assumed" in text.basis


def test_a_vocabulary_that_may_not_suit_the_language_is_a_wider_range():
    """A small or an imported vocabulary may need a token for each byte; the epochs are then fewer."""
    russian = {"data.sources": [{"kind": "wiki", "language": "ru"}]}
    own, small, imported = (
        estimate_text(load("gpt-125m", {**russian, **settings}))
        for settings in ({}, {"tokenizer.vocab_size": 1024}, {"tokenizer.path": "gpt2/tokenizer.json"})
    )
    assert imported.most_tokens == small.most_tokens == pytest.approx(5 * own.most_tokens)
    assert imported.least_tokens == own.least_tokens and "assuming 1 to 8.5 bytes per token" in imported.basis
    english = estimate_text(load("gpt-125m", {"tokenizer.path": "gpt2/tokenizer.json"}))
    assert "assuming 4 to 4.8 bytes per token" in english.basis


@pytest.mark.parametrize(
    "source",
    [{"kind": "mock"}, {"kind": "wiki", "path": "dump.xml.bz2"}, {"kind": "wiki", "namespaces": [0, 1]}],
)
def test_other_sources_are_not_estimated(source):
    assert estimate_text(load("gpt-125m", {"data.sources": [source]})) is None


def test_the_limit_of_epochs_sees_the_estimate():
    """Fewer epochs than the limit for certain are not known; more for certain refuse."""
    with pytest.raises(SubmitError, match=r"limits\.epochs is exceeded: the run trains for 51"):
        refuse_run_over_limits(load("gpt-13b-4xdp-4xpp", ["limits.epochs=4"]))
    refuse_run_over_limits(load("gpt-13b-4xdp-4xpp", ["limits.epochs=100"]))


def test_the_table_has_the_twenty_largest():
    assert len(WIKIPEDIAS) == 20
    sizes = [wikipedia.text_bytes for wikipedia in WIKIPEDIAS.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert all(wikipedia.articles > 5e5 and wikipedia.dump_bytes > 8e8 for wikipedia in WIKIPEDIAS.values())


def test_tokens_per_parameter_far_from_any_published_model():
    """Megatron-LM's script for 175B: 9 tokens a parameter. GPT-3's 1.7 and 20 are near published models."""
    found = next(
        finding
        for finding in plan(load("gpt-175b")).findings
        if finding.rule == "tokens_match_a_published_length"
    )
    assert found.message.startswith("1.52T tokens for 174.6B parameters are 8.72 tokens per parameter")
    assert (
        "BLOOM 176B with 2.08 (arXiv:2211.05100) and Falcon 180B with 19.4 (arXiv:2311.16867)"
        in found.message
    )
    assert [is_far(175e9, ratio * 175e9) for ratio in (1.7, 9, 20)] == [False, True, False]
    assert not is_far(1e13, 1e13)
    assert not any(is_far(length.parameters, length.tokens) for length in LENGTHS)
