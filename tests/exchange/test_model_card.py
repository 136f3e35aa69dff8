"""The model card: README.md of an exported model."""

from nbtrain.base.printing.report import Table
from nbtrain.exchange.model_card import _source


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
