"""The data card in JupyterLab: documents are leafed through and found, in a real browser.

Environment as in test_browser.py.
"""

from typing import Any

import pytest

from nbtrain.config.schema import RunConfig
from tests.dataset.dataset_maker import make_dataset
from tests.end_to_end.test_browser import (  # noqa: F401
    Lab,
    browser,
    lab,
    open_notebook,
    page,
    run_cell,
    screenshot,
    write_notebook,
)

pytestmark = [pytest.mark.slow, pytest.mark.browser]

CONFIG = {
    "name": "card",
    "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 16},
    "tokenizer": {"name": "card", "vocab_size": 300},
    "data": {"name": "card", "sources": [{"kind": "mock"}]},
    "batch": {"micro_batch_size": 1, "global_batch_size": 1, "train_tokens": 16},
    "lr_schedule": {"lr": 1e-3},
}


def test_documents_are_leafed_through(lab: Lab, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The card shows its first document; the arrow, a number and a text show others."""
    monkeypatch.setenv("NBTRAIN_DATA", lab.environment["NBTRAIN_DATA"])
    texts = [f"question {number}: what? answer: text {number}." for number in range(40)]
    make_dataset(RunConfig.model_validate(CONFIG), texts, learnt_from=[5] * 40)
    write_notebook(lab, "card.ipynb", 'import nbtrain as nb\n\nnb.data_card("card")')
    open_notebook(page, lab, "card.ipynb")
    run_cell(page, 0)
    shown = page.locator(".jp-OutputArea pre").last
    shown.get_by_text("text 0.").wait_for()
    screenshot(page, "data-card")
    page.locator("button[title='the next']").click()
    shown.get_by_text("text 1.").wait_for()
    number = page.locator(".widget-text input[type=number]").first
    number.fill("17")
    number.press("Enter")
    shown.get_by_text("text 17.").wait_for()
    find = page.get_by_placeholder("text in a document")
    find.fill("QUESTION 33")
    find.press("Enter")
    shown.get_by_text("text 33.").wait_for()
    page.get_by_text("in document 33").wait_for()
    screenshot(page, "data-card-found")
