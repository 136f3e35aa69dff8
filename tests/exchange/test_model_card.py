"""The model card: README.md of an exported model."""

from nbtrain.base.printing.report import Table
from nbtrain.config.load import load
from nbtrain.exchange.model_card import _loss, _source


def test_a_source_is_one_row():
    """A data source takes one row of the table, even if its license contains line breaks or the cell
    separator.
    """
    source = {"name": "wiki|en", "documents": 1200, "tokens": None, "licence": "CC BY\n4.0 | GFDL\n"}
    sources = [source, {"kind": "jsonl"}]
    assert Table(("", "", "", ""), list(map(_source, sources))).markdown()[-2:] == [
        "| wiki\\|en | 1,200 |  | CC BY 4.0 \\| GFDL |",
        "| jsonl |  |  | not stated |",
    ]


def test_a_loss_over_tokens_has_a_perplexity():
    """The perplexity is next to the validation loss, unless the loss is over pairs of answers (dpo) or its
    exponential is too large for a float.
    """
    saved = {"step": 20, "evaluated_step": 20, "validation_loss": 2.0}
    tokens, pairs = load("gpt-tiny"), load("gpt-tiny", {"dpo": {"beta": 0.2}}, check=False)
    assert _loss(tokens, saved) == ["2.0000 (perplexity 7.39)"]
    assert _loss(tokens, saved | {"evaluated_step": 10}) == ["2.0000 (perplexity 7.39), measured at step 10"]
    assert _loss(pairs, saved) == ["2.0000"]
    assert _loss(tokens, saved | {"validation_loss": 800.0}) == ["800.0000"]
