"""The page for trying a model, in a browser: it follows JupyterLab's theme and shows new checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from nbtrain import serving
from tests.end_to_end.jupyterlab import browser  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PAGE = Path(serving.__file__).with_name("page.html")
LAB = '<body data-jp-theme-light="false"><iframe src="/models/" width="700" height="600"></iframe></body>'


def test_the_page_in_a_tile(browser: Any) -> None:  # noqa: F811
    """In JupyterLab's tile, the page follows the theme, offers a model that was saved later, and keeps the
    choice."""
    models: list[dict[str, Any]] = []
    page = browser.new_page()
    page.route("http://lab.test/", lambda route: route.fulfill(body=LAB, content_type="text/html"))
    page.route(
        "http://lab.test/models/",
        lambda route: route.fulfill(body=PAGE.read_text(), content_type="text/html"),
    )
    page.route("http://lab.test/models/v1/models", lambda route: route.fulfill(json={"data": models}))
    page.goto("http://lab.test/")
    tile = page.frame_locator("iframe")
    tile.get_by_text("No run has a checkpoint yet.").wait_for()
    generate = tile.get_by_role("button", name="Generate")
    assert generate.is_disabled() and generate.get_attribute("title") == "There is no model yet."
    root = tile.locator("html")
    assert root.evaluate("node => getComputedStyle(node).colorScheme") == "dark"
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    tile.locator("html[style*=light]").wait_for()
    models += [{"id": "gpt-a", "step": 20}, {"id": "gpt-b", "step": 40}]
    tile.get_by_label("Prompt").click()
    tile.locator("option", has_text="gpt-b, step 40").wait_for(state="attached")
    assert tile.get_by_role("status").inner_text() == "" and generate.is_enabled()
    tile.get_by_label("Model").select_option("gpt-b")
    models[1]["step"] = 60
    root.evaluate("() => window.dispatchEvent(new Event('focus'))")
    tile.locator("option", has_text="gpt-b, step 60").wait_for(state="attached")
    assert tile.get_by_label("Model").input_value() == "gpt-b"
    page.close()
