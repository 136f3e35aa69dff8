"""Browser of a dataset in a notebook: the data card, and below it any document, read on demand.

    +-- the card's tables and pictures ----------------------------------+
    | dataset [v]   document [ 17 ] of 120   ---o-----   [<] [>]         |
    | find [ text          ] [next]                                      |
    | document 17 (84 tokens): its text, tokens in the loss coloured     |
    | training sequences of the run: loss, padding, documents' bounds    |
    +--------------------------------------------------------------------+

Without a live front end (papermill, exported HTML), the card's static page is shown instead.
"""

import html
import math
import time
from dataclasses import fields
from typing import Any

import ipywidgets as widgets

from nbtrain.base.errors import NbtrainError
from nbtrain.dataset.look import marked
from nbtrain.dataset.look.browser import Browser
from nbtrain.dataset.look.card import BlendCard, DataCard
from nbtrain.lab.widgets.mime import bundle, show

# A new text comes right after the message of Enter. Enter with the old text sends that message alone, and no
# text that is typed later belongs to it.
ENTER_SECONDS = 5.0


class DocumentBrowser(widgets.VBox):
    """One document of a dataset at a time. `show` and `find` do what the controls do."""

    def __init__(self, browser: Browser):
        self.browser = browser
        last = max(0, browser.num_documents - 1)
        small, medium, wide = (widgets.Layout(width=f"{pixels}px") for pixels in (44, 70, 330))
        row = widgets.Layout(display="flex", flex_flow="row wrap", align_items="center")
        later = {"continuous_update": False}
        bounds = {"min": 0, "max": last}
        self.number = widgets.BoundedIntText(description="document", layout={"width": "190px"}, **bounds)
        stretched = widgets.Layout(flex="1 1 100px", max_width="420px")
        self.slider = widgets.IntSlider(readout=False, layout=stretched, **bounds, **later)
        self.previous_button = widgets.Button(icon="chevron-left", tooltip="the one before", layout=small)
        self.next_button = widgets.Button(icon="chevron-right", tooltip="the next", layout=small)
        self.text = widgets.Text(description="find", placeholder="text in a document", layout=wide, **later)
        self.find_button = widgets.Button(description="next", layout=medium)
        self.answer = widgets.HTML()
        self.page = widgets.HTML(layout=widgets.Layout(max_height="420px", overflow="auto"))
        count = widgets.HTML(f"of {browser.num_documents:,}")
        leaf = [self.number, count, self.slider, self.previous_button, self.next_button]
        search = [self.text, self.find_button, self.answer]
        super().__init__([widgets.Box(leaf, layout=row), widgets.Box(search, layout=row), self.page])
        widgets.link((self.number, "value"), (self.slider, "value"))
        self.number.observe(lambda change: self._draw(), names="value")
        self.previous_button.on_click(lambda _: self.show(self.number.value - 1))
        self.next_button.on_click(lambda _: self.show(self.number.value + 1))
        self.find_button.on_click(lambda _: self._search(self.text.value))
        self.text.on_msg(self._take_message)
        self.text.observe(lambda change: self._take_text(change["new"]), names="value")
        self._entered_at = -math.inf
        self._draw()

    def show(self, number: int) -> None:
        """Show a document; a number beyond the ends means the end."""
        self.number.value = min(max(number, 0), self.number.max)

    def find(self, text: str) -> int | None:
        """Show the next document with `text`, after the last one again from the first; return its number."""
        if not text:
            self.answer.value = ""
            return None
        start = self.number.value + 1
        try:
            found, reached = self.browser.find(text, start)
            if found is None and reached == self.browser.num_documents:
                found, reached = self.browser.find(text, 0)
        except NbtrainError as error:
            self.answer.value = html.escape(str(error))
            return None
        if found is None:
            self.answer.value = "in no document"
            if reached < self.browser.num_documents:
                self.answer.value = f"not up to document {reached - 1:,}; [next] searches on from there"
                self.show(reached - 1)
            return None
        self.answer.value = f"in document {found:,}"
        self.show(found)
        return found

    def _take_message(self, _: Any, content: dict[str, Any], buffers: Any) -> None:
        # Text.on_submit would do, but is deprecated: it warns.
        if content.get("event") == "submit":
            self._entered_at = time.monotonic()

    def _take_text(self, text: str) -> None:
        # The front end sends a new text after Enter, and when another control takes the focus. If that is
        # [next], it searches itself: two searches would pass over the first document that is found.
        if time.monotonic() - self._entered_at < ENTER_SECONDS:
            self._search(text)

    def _search(self, text: str) -> None:
        self._entered_at = -math.inf
        self.find(text)

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
        self.summary = widgets.HTML(f'<div style="line-height:1.4">{card.summary_html()}</div>')
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
        shown = self.cards[self.choice.value].sequences_html()
        self.sequences.value = shown and f'<div style="line-height:1.4">{shown}</div>'


class LiveDataCard(DataCard):
    """A data card that shows itself with its browser in a live notebook."""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(CardPanel(self), self.to_html(), str(self)), {}

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_()[0])


class LiveBlendCard(BlendCard):
    """A blend's data card that shows itself with its browser in a live notebook."""

    _repr_mimebundle_ = LiveDataCard._repr_mimebundle_
    _ipython_display_ = LiveDataCard._ipython_display_


def live(card: DataCard | BlendCard) -> DataCard | BlendCard:
    """Return the card with a browser below it in a live front end."""
    values = {each.name: getattr(card, each.name) for each in fields(card)}
    return LiveBlendCard(**values) if isinstance(card, BlendCard) else LiveDataCard(**values)
