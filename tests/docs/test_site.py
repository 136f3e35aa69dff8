"""The site that `make site` builds has every page in its navigation and needs no network."""

import base64
import itertools
import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, pages
from tests.end_to_end.jupyterlab import browser  # noqa: F401
from tests.site import NOT_EXECUTED, build, gather, notebook_page

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def copies(tmp_path) -> Path:
    """Create a folder with one executed notebook that has every kind of output."""
    folder = tmp_path / "copies"
    folder.mkdir()
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "\x1b[1m12 steps\x1b[0m\n```\n"},
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"image/png": base64.b64encode(DOT).decode(), "text/plain": "<Figure>"},
        },
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/html": "<p>a panel</p>\n\n<pre>of two parts</pre>",
                "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
            },
        },
        {"output_type": "error", "ename": "E", "evalue": "", "traceback": ["JobFailed: rank 1"]},
    ]
    code = {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Plan\n\nWhy."},
        {**code, "source": "nb.plan(config)", "outputs": outputs},
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "02_plan.ipynb").write_text(json.dumps(notebook))
    return folder


def test_a_notebook_is_a_page_with_its_outputs(copies, tmp_path):
    """A notebook becomes a page with its text, pictures and HTML; a notebook without outputs says so."""
    page = notebook_page(copies / "02_plan.ipynb", tmp_path)
    assert page.startswith(
        "# Plan\n\nWhy.\n\n```python\nnb.plan(config)\n```\n\n````text\n12 steps\n```\n````"
    )
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", page)
    assert (tmp_path / picture).read_bytes() == DOT
    assert "```{raw} html\n<p>a panel</p>\n\n<pre>of two parts</pre>\n```" in page
    assert page.endswith("```text\nJobFailed: rank 1\n```\n")
    assert NOT_EXECUTED not in page
    assert NOT_EXECUTED in notebook_page(REPOSITORY / "notebooks" / "02_plan.ipynb", tmp_path)


def test_the_navigation_names_every_page_once(copies, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    gather(source, copies)
    start = (source / "README.md").read_text()
    named = [
        line
        for block in re.findall(r"```\{toctree\}\n(.*?)```", start, re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    expected = {path.relative_to(REPOSITORY).with_suffix("").as_posix() for path in pages()} - {"README"}
    assert sorted(named) == sorted(expected)
    assert "Plan\n\nWhy." in (source / "notebooks" / "02_plan.md").read_text()


@pytest.mark.slow
@pytest.mark.soak
def test_the_site_is_built_without_a_warning_and_asks_no_network(copies, tmp_path, browser):  # noqa: F811
    """Sphinx builds the site without a warning; in Chromium its pages fit, request
    nothing and can be searched.
    """
    html = build(tmp_path / "my site", copies)
    asked: list[str] = []
    errors: list[str] = []
    for theme, width in itertools.product(("light", "dark"), (400, 1200)):
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((html / "index.html").as_uri(), wait_until="commit")
        page.wait_for_url("**/README.html")
        for path in sorted({*html.rglob("*.html")} - {html / "index.html"}):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        page.goto(f"{(html / 'search.html').as_uri()}?q=heartbeat")
        page.locator("#search-results a", has_text=re.compile("fault|fail", re.IGNORECASE)).first.wait_for()
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert errors == []
