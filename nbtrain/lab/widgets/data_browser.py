"""A dataset browser for notebooks: the data card, and below it any document, read on demand.

    +-- the card's tables and pictures ----------------------------------+
    | dataset [v]   document [ 17 ] of 120   ---o-----   [<] [>]         |
    | find [ text          ] [next]                                      |
    | document 17 (84 tokens): its text, tokens in the loss coloured     |
    | training sequences of the run: loss, padding, documents' bounds    |
    +--------------------------------------------------------------------+

Without a live front end (papermill, exported HTML), the card's static page is shown instead.
"""

import html
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.dataset.views import marked
from nbtrain.dataset.views.browser import Browser
from nbtrain.dataset.views.card import BlendCard, DataCard
from nbtrain.lab.widgets.mime import bundle, show


class SearchRow(anywidget.AnyWidget):
    """A search field with a [next] button and the result. `search` is called with each text to find."""

    _esm = Path(__file__).with_name("search_row.js").read_text(encoding="utf-8")
    answer = traitlets.Unicode().tag(sync=True)
    """Result of the last search."""

    def __init__(self, search: Callable[[str], object]):
        super().__init__()
        self.on_msg(lambda _widget, content, _buffers: search(str(content.get("find", ""))))


class DocumentBrowser(widgets.VBox):
    """Shows one document of a dataset at a time. Its methods `show` and `find` do what the controls do."""

    def __init__(self, browser: Browser):
        self.browser = browser
        last = max(0, browser.num_documents - 1)
        small = widgets.Layout(width="44px")
        row = widgets.Layout(display="flex", flex_flow="row wrap", align_items="center")
        bounds = {"min": 0, "max": last}
        self.number = widgets.BoundedIntText(description="document", layout={"width": "190px"}, **bounds)
        stretched = widgets.Layout(flex="1 1 100px", max_width="420px")
        self.slider = widgets.IntSlider(readout=False, layout=stretched, continuous_update=False, **bounds)
        self.previous_button = widgets.Button(icon="chevron-left", tooltip="previous document", layout=small)
        self.next_button = widgets.Button(icon="chevron-right", tooltip="next document", layout=small)
        self.search = SearchRow(self.find)
        self.page = widgets.HTML(layout=widgets.Layout(max_height="420px", overflow="auto"))
        count = widgets.HTML(f"of {browser.num_documents:,}")
        leaf = [self.number, count, self.slider, self.previous_button, self.next_button]
        super().__init__([widgets.Box(leaf, layout=row), self.search, self.page])
        widgets.link((self.number, "value"), (self.slider, "value"))
        self.number.observe(lambda change: self._draw(), names="value")
        self.previous_button.on_click(lambda _: self.show(self.number.value - 1))
        self.next_button.on_click(lambda _: self.show(self.number.value + 1))
        self._draw()

    def show(self, number: int) -> None:
        """Show a document by its number. A number out of range shows the first or the last document."""
        self.number.value = min(max(number, 0), self.number.max)

    def find(self, text: str) -> int | None:
        """Show the next document that contains `text`; after the last document, continue with the first.

        Return the document's number, or None if no document was found.
        """
        if not text:
            self.search.answer = ""
            return None
        start = self.number.value + 1
        try:
            found, reached = self.browser.find(text, start)
            if found is None and reached == self.browser.num_documents:
                found, reached = self.browser.find(text, 0)
        except NbtrainError as error:
            self.search.answer = str(error)
            return None
        if found is None:
            self.search.answer = "not found in any document"
            if reached < self.browser.num_documents:
                self.search.answer = f"not found up to document {reached - 1:,}; [next] continues there"
                self.show(reached - 1)
            return None
        self.search.answer = f"found in document {found:,}"
        self.show(found)
        return found

    def _draw(self) -> None:
        try:
            document = self.browser.document(self.number.value)
        except NbtrainError as error:
            self.page.value = html.escape(str(error))
            return
        masked = f": {marked.LEGEND_HTML}" if document.masked else ""
        text = f"<b>{html.escape(document.title)}</b>{masked}{document.to_html()}"
        self.page.value = f'<div style="line-height:1.4">{text}</div>'


class CardPanel(widgets.VBox):
    """A data card with a browser below it; for a blend, a menu chooses the dataset."""

    def __init__(self, card: DataCard | BlendCard):
        self.cards = card.cards if isinstance(card, BlendCard) else [card]
        names = [entry["name"] for entry in card.entries] if isinstance(card, BlendCard) else [card.prefix]
        places = [(name, place) for place, name in enumerate(names)]
        layout = widgets.Layout(width="330px", display=None if isinstance(card, BlendCard) else "none")
        self.choice = widgets.Dropdown(options=places, value=0, description="dataset", layout=layout)
        # Without the line height, a line of text is as tall as a control.
        self.summary = widgets.HTML(f'<div style="line-height:1.4">{card.summary().html()}</div>')
        self.browser = self._open()
        self.sequences = widgets.HTML()
        super().__init__([self.summary, self.choice, self.browser, self.sequences])
        self._show_sequences()
        self.choice.observe(lambda change: self._choose(), names="value")

    def _open(self) -> DocumentBrowser:
        card = self.cards[self.choice.value]
        return DocumentBrowser(Browser(card.prefix, card.tokenizer))

    def _choose(self) -> None:
        old, self.browser = self.browser, self._open()
        self.children = [self.summary, self.choice, self.browser, self.sequences]
        self._show_sequences()
        old.close()

    def _show_sequences(self) -> None:
        shown = self.cards[self.choice.value].sequences_shown.html()
        self.sequences.value = shown and f'<div style="line-height:1.4">{shown}</div>'


class LiveDataCard(DataCard):
    """A data card that is displayed with a document browser below it in a live notebook."""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(CardPanel(self), self._repr_html_(), str(self)), {}

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_()[0])


class LiveBlendCard(BlendCard):
    """A blend's data card that is displayed with a document browser below it in a live notebook."""

    _repr_mimebundle_ = LiveDataCard._repr_mimebundle_
    _ipython_display_ = LiveDataCard._ipython_display_


def live(card: DataCard | BlendCard) -> DataCard | BlendCard:
    """Return a copy of the card that is displayed with a document browser below it in a live notebook."""
    values = {each.name: getattr(card, each.name) for each in fields(card)}
    return LiveBlendCard(**values) if isinstance(card, BlendCard) else LiveDataCard(**values)
