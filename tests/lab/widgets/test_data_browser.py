"""The document browser below a data card: by number, by text, in a blend, and as a static page."""

import pytest

import nbtrain as nb
from nbtrain.api import verbs as api
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.views.browser import Browser
from nbtrain.dataset.views.card import data_card
from nbtrain.lab.widgets import mime
from nbtrain.lab.widgets.data_browser import CardPanel, DocumentBrowser, live
from nbtrain.lab.widgets.mime import WIDGET_MIME
from tests.dataset.conftest import make_config, texts  # noqa: F401
from tests.dataset.dataset_maker import make_dataset


@pytest.fixture
def watched(monkeypatch):
    """Simulate that a live front end displays the notebook."""
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    monkeypatch.setattr(api, "is_watched", lambda: True)


def search(browser, text):
    """Send a search text, as the front end does when the user presses Enter or [next]."""
    browser.search._handle_custom_msg({"find": text}, [])


def test_documents_by_number_and_by_text(make_config, texts):  # noqa: F811
    """The number, the slider and the buttons select a document. A search shows the next document that
    contains the text, and continues at the start after the last document.
    """
    make_dataset(make_config(), texts)
    browser = DocumentBrowser(Browser("small"))
    assert texts[0] in browser.page.value
    browser.slider.value = 17
    assert browser.number.value == 17
    assert f"<b>document 17 ({len(browser.browser.indexed[17])} tokens)</b>" in browser.page.value
    browser.next_button.click()
    assert texts[18] in browser.page.value
    browser.show(10**9)
    assert browser.number.value == 119
    browser.next_button.click()
    assert browser.number.value == 119
    search(browser, "(7).")
    assert (browser.number.value, browser.search.answer) == (7, "found in document 7")
    search(browser, "(7).")
    assert browser.number.value == 7
    assert browser.find("(11") == 11
    assert browser.find("(11") == 110
    assert browser.find("no such words") is None
    assert browser.search.answer == "not found in any document"
    assert browser.number.value == 110


def test_each_hit_is_shown(make_config, texts):  # noqa: F811
    """A search starts after the displayed document; an empty text finds nothing."""
    make_dataset(make_config(), texts)
    browser = DocumentBrowser(Browser("small"))
    for text, number in (("(11", 11), ("(10", 100), ("(10", 101), ("(3", 3), ("", 3)):
        search(browser, text)
        assert browser.number.value == number
    assert browser.search.answer == ""


def test_names_of_sources_are_text(make_config, texts):  # noqa: F811
    """Names of sources in a manifest are shown as text, never interpreted as HTML."""
    sources = [{"name": "<i>x</i>", "sequences": [0, 60]}, {"name": "b", "sequences": [60, 120]}]
    make_dataset(make_config(), texts, sources=sources)
    page = DocumentBrowser(Browser("small")).page.value
    assert "<i>" not in page and "<b>document 0 of &lt;i&gt;x&lt;/i&gt; (" in page


def test_a_long_search_stops(make_config, texts, monkeypatch):  # noqa: F811
    """A search that takes too long stops, says how far it came, and continues there."""
    make_dataset(make_config(), texts)
    browser = DocumentBrowser(Browser("small"))
    find = browser.browser.find
    monkeypatch.setattr(browser.browser, "find", lambda text, start: find(text, start, seconds=-1.0))
    assert browser.find("(50).") is None
    assert browser.search.answer == "not found up to document 1; [next] continues there"
    assert browser.number.value == 1


def test_learnt_tokens_are_coloured(make_config, texts):  # noqa: F811
    """With a loss mask, the tokens in the loss are shown in color, and all text is escaped."""
    make_dataset(make_config(), ["<b>question</b> answer"], learnt_from=[4])
    browser = DocumentBrowser(Browser("small"))
    assert "tokens in the loss are coloured" in browser.page.value
    assert "background-color" in browser.page.value
    assert "<b>question" not in browser.page.value


@pytest.mark.slow
def test_card_in_a_live_notebook(make_config, texts, watched):  # noqa: F811
    """nb.data_card returns the card with its numbers; in a live notebook, it is shown as a widget and a
    static page.
    """
    make_dataset(make_config(), texts)
    card = nb.data_card("small")
    assert card.documents == 120
    data, _ = card._repr_mimebundle_()
    assert set(data) == {WIDGET_MIME, "text/html", "text/plain"}
    assert data["text/html"] == card._repr_html_() == data_card("small")._repr_html_()


def test_card_where_nobody_watches(make_config, texts):  # noqa: F811
    """With papermill, the complete card with its documents is shown, without a widget."""
    make_dataset(make_config(), texts)
    data, _ = live(nb.data_card("small"))._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/html"].count("<details") == 12


@pytest.mark.slow
def test_a_dataset_of_a_blend_is_chosen(make_config, texts, watched):  # noqa: F811
    """In a blend, the browser shows the dataset that the user selects."""
    make_dataset(make_config(), texts)
    make_dataset(make_config(), ["another text"], dataset=DatasetFiles.named("few"))
    entries = [{"name": "small", "weight": 1}, {"name": "few", "weight": 3}]
    card = nb.data_card(make_config(data={"name": "mix", "sources": [], "blend": entries}))
    panel = CardPanel(card)
    assert "blend mix" in panel.summary.value
    assert texts[0] in panel.browser.page.value
    panel.choice.value = 1
    assert "another text" in panel.browser.page.value
    assert panel.browser in panel.children
    assert WIDGET_MIME in card._repr_mimebundle_()[0]
