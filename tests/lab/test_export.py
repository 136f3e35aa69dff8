"""Plain nbconvert of our notebooks: the page loads nothing from the network, has a picture of every panel,
and leaves other notebooks unchanged.
"""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from traitlets.config import Config

from nbtrain.lab import jupyter
from nbtrain.lab.export import WIDGET_MIME

CONFIG = json.loads((Path(jupyter.__file__).parent / "jupyter_nbconvert_config.json").read_text())
WIDGET = {WIDGET_MIME: {"version_major": 2, "version_minor": 0, "model_id": "x"}}


def page_of(*cells, **metadata) -> str:
    notebook = nbformat.v4.new_notebook(cells=list(cells), metadata=metadata)
    return HTMLExporter(config=Config(CONFIG)).from_notebook_node(notebook)[0]


def code(source: str, **data: object):
    outputs = [nbformat.v4.new_output("display_data", data=data)] if data else []
    return nbformat.v4.new_code_cell(source, outputs=outputs)


def asked(page: str) -> list[str]:
    """Return the addresses that a browser would load for the page."""
    found = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']([^\"']*)", page)
    found += re.findall(r"(?:import\(|from |Src = |import )[\"'](https?://[^\"']*)", page)
    return [address for address in found if "//" in address and not address.startswith("data:")]


@pytest.mark.slow
def test_a_page_saved_with_live_panels_shows_their_pictures_and_asks_nobody() -> None:
    """A notebook that was saved with live panels, including widget state, is exported with their pictures and
    loads nothing.
    """
    panel = code("import nbtrain as nb\nnb.open_run('x')", **WIDGET, **{"text/html": "<b>the picture</b>"})
    state = {
        "application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2, "version_minor": 0}
    }
    page = page_of(nbformat.v4.new_markdown_cell("costs $5 and `$x$`"), panel, widgets=state)
    assert "<b>the picture</b>" in page
    assert asked(page) == [] and "html-manager" not in page


def test_a_folded_source_is_not_on_the_page() -> None:
    """The source of a collapsed cell is not part of the page, but its output is."""
    folded = code("import nbtrain\nsecret()", **{"text/html": "<b>the output</b>"})
    folded.metadata["jupyter"] = {"source_hidden": True}
    page = page_of(folded)
    assert "secret" not in page and "<b>the output</b>" in page


@pytest.mark.parametrize(
    ("text", "data", "library"),
    [
        ("the loss $x^2$", {}, "mathjax"),
        ("", {"text/latex": "x"}, "mathjax"),
        ("", {"application/javascript": "1"}, "require"),
        ("", {"text/html": "<script>require(['x'])</script>"}, "require"),
        ("```mermaid\ngraph\n```", {}, "mermaid"),
    ],
)
def test_what_needs_a_library_keeps_it(text: str, data: dict, library: str) -> None:
    page = page_of(nbformat.v4.new_markdown_cell(text), code("import nbtrain", **data))
    assert any(library in address for address in asked(page))


def test_a_notebook_of_others_is_left_alone() -> None:
    page = page_of(code("import numpy  # not nbtrain"))
    assert {"mathjax", "require.js"} <= set(re.findall("mathjax|require.js", " ".join(asked(page))))
