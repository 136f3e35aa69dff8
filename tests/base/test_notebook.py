"""The progress bar of long work in a notebook."""

import pytest

from nbtrain.base import progress
from nbtrain.lab.widgets import bar


class Handle:
    def __init__(self, shown: list):
        self.shown = shown

    def update(self, data, raw):
        self.shown.append(data)


def test_a_bar_is_one_output_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a live notebook, a bar is one output that is rewritten; elsewhere lines are printed instead."""
    import IPython.display

    first: list[dict] = []
    again: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: first.append(data) or Handle(again))
    assert bar.bar_if_watched() is None
    monkeypatch.setattr(bar, "is_watched", lambda: True)
    paint = bar.bar_if_watched()
    paint("encode <x>", 0.25, "1 of 4")
    paint("encode <x>", 1.0, "4 of 4")
    assert len(first) == len(again) == 1
    assert "width:25.00%" in first[0]["text/html"] and "encode &lt;x&gt;" in first[0]["text/html"]
    assert again[0]["text/plain"] == "encode <x>: 4 of 4"


def test_the_notebooks_functions_install_it() -> None:
    import nbtrain.api.verbs

    assert nbtrain.api.verbs and progress.painter is bar.bar_if_watched
