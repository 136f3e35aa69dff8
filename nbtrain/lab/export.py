"""nbconvert's HTML export of notebooks that use nbtrain: complete without network access.

    the widget of an output with a picture    omitted: a widget manager from a CDN would hide the picture
    require.js, MathJax, Mermaid              not requested if nothing on the page needs them
    the source of a folded cell               omitted, as JupyterLab shows it; its output stays

lab/jupyter/jupyter_nbconvert_config.json, which the wheel installs, turns this on for `jupyter nbconvert --to
html`, and the server extension turns it on for JupyterLab's export. A notebook that does not import nbtrain
is not changed.
"""

import re
from typing import Any

from nbconvert.preprocessors import Preprocessor

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
SCRIPT_MIMES = ("application/javascript", "application/vnd.bokehjs_load.v0+json", WIDGET_MIME)
USES_NBTRAIN = re.compile(r"^\s*(?:import|from)\s+nbtrain\b", re.MULTILINE)
# $...$ with a word or a command in it, $$, \( and \[: what MathJax would typeset.
MATH = re.compile(r"\$\$|\\\(|\\\[|\\begin\{|\$[^\s$](?:[^$\n]*[^\s$])?\$")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class OfflinePage(Preprocessor):
    """A preprocessor that removes everything that needs a network from a notebook and its page."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Change the notebook and nbconvert's resources in place, and return them."""
        if any(cell.cell_type == "code" and USES_NBTRAIN.search(cell.source) for cell in nb.cells):
            without_widgets(nb)
            without_folded_sources(nb)
            for name in unneeded(nb):
                resources[name] = ""
        return nb, resources


def without_widgets(nb: Any) -> None:
    """Remove widgets from outputs that also have a picture.

    If no widget is left, the notebook's saved widget state is removed too.
    """
    outputs = [output.get("data", {}) for cell in nb.cells for output in cell.get("outputs", [])]
    for data in outputs:
        if "text/html" in data or "image/png" in data:
            data.pop(WIDGET_MIME, None)
    if not any(WIDGET_MIME in data for data in outputs):
        nb.metadata.pop("widgets", None)


def without_folded_sources(nb: Any) -> None:
    """Make nbconvert omit the source of every cell whose source is folded in JupyterLab."""
    for cell in nb.cells:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["transient"] = {"remove_source": True}


def unneeded(nb: Any) -> list[str]:
    """Return the libraries that the notebook does not use, by their names in nbconvert's resources."""
    outputs = [output.get("data", {}) for cell in nb.cells for output in cell.get("outputs", [])]
    texts = [CODE.sub("", cell.source) for cell in nb.cells if cell.cell_type == "markdown"]
    names = []
    if not any(mime in data for data in outputs for mime in SCRIPT_MIMES) and not any(
        "require" in data.get("text/html", "") and "<script" in data.get("text/html", "") for data in outputs
    ):
        names += ["require_js_url", "jquery_url"]
    if not any(MATH.search(text) for text in texts) and not any(
        "text/latex" in data or "text/markdown" in data for data in outputs
    ):
        names.append("mathjax_url")
    if not any("mermaid" in text for text in (cell.source for cell in nb.cells)) and not any(
        "text/vnd.mermaid" in data for data in outputs
    ):
        names += ["mermaid_js_url", "mermaid_layout_elk_js_url"]
    return names
