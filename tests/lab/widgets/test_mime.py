"""The picture that is shown instead of a widget when there is no kernel."""

import json
import re

import pytest

from nbtrain.lab.widgets import mime


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    import IPython.display

    outputs: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: outputs.append(data))
    return outputs


def test_a_widget_has_its_picture_once_more_where_only_a_script_finds_it(shown: list[dict]) -> None:
    """The hidden copy of a widget's picture is found only by a script: nothing in it can close its element,
    and without scripts it is not visible.
    """
    picture = "<b>loss</b></script><!-- \\u003c -->"
    mime.show({mime.WIDGET_MIME: {}, "text/html": picture, "text/plain": "words"})
    widget, kept = shown
    assert mime.WIDGET_MIME in widget and kept["text/plain"] == ""
    elements = re.findall(r"<script[^>]*>(.*?)</script>", kept["text/html"], re.DOTALL)
    assert json.loads(elements[0]) == picture
    assert re.sub(r"<script.*?</script>", "", kept["text/html"], flags=re.DOTALL) == ""


def test_a_picture_alone_is_one_output(shown: list[dict]) -> None:
    mime.show({"text/html": "<b>x</b>", "text/plain": "words"})
    assert len(shown) == 1
