"""A notebook's progress bar, and whether a front end is there to show it."""

import sys
from types import SimpleNamespace

import pytest

from nbtrain.base.printing.notebook import Bar, is_watched


class Handle:
    """A display handle that records its updates."""

    def __init__(self, shown: list):
        self.shown = shown

    def update(self, data, raw):
        self.shown.append(data)


def test_a_bar_is_one_output_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call displays an output, and later calls update the same output."""
    import IPython.display

    first: list[dict] = []
    again: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: first.append(data) or Handle(again))
    paint = Bar()
    paint("encode <x>", 0.25, "1 of 4")
    paint("encode <x>", 1.0, "4 of 4")
    assert len(first) == len(again) == 1
    assert "width:25.00%" in first[0]["text/html"] and "encode &lt;x&gt;" in first[0]["text/html"]
    assert again[0]["text/plain"] == "encode <x>: 4 of 4"


@pytest.mark.parametrize(
    ("message", "watched"),
    [
        ({"content": {"allow_stdin": True}}, True),
        ({"content": {"allow_stdin": False}}, False),
        ({"header": {"msg_type": "comm_msg"}}, True),
        ({}, False),
    ],
)
def test_a_front_end_that_takes_input_watches(
    monkeypatch: pytest.MonkeyPatch, message: dict, watched: bool
) -> None:
    """papermill and nbconvert allow no input, so no progress bar is shown; a widget's
    message proves a live front end.
    """
    import IPython

    assert not is_watched(), "this process is not a kernel"
    kernel = SimpleNamespace(get_parent=lambda: message)
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=kernel))
    assert is_watched() is watched
