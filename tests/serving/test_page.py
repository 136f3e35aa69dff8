"""The page for trying a model, in a browser: it follows JupyterLab's theme and lists new checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from nbtrain import serving
from tests.end_to_end.accessible import axe_script, findings
from tests.end_to_end.jupyterlab import browser  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PAGE = Path(serving.__file__).with_name("page.html")
LAB = '<body data-jp-theme-light="false"><iframe src="/models/" width="700" height="600"></iframe></body>'


BASE = "http://lab.test/models/"


def opened(browser: Any, routes: dict[str, Any], address: str = BASE) -> Any:  # noqa: F811
    """Open the page in a tab; requests to `routes`, {path: handler}, are answered by the test."""
    page = browser.new_page()
    page.route("http://lab.test/", lambda route: route.fulfill(body=LAB, content_type="text/html"))
    html = PAGE.read_text()
    page.route(f"{BASE}*", lambda route: route.fulfill(body=html, content_type="text/html"))
    for path, handler in routes.items():
        page.route(f"{BASE}{path}", handler)
    page.goto(address)
    return page


def described(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the routes that list the models and describe one of them."""

    def one(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        route.fulfill(json=next(model for model in models if model["id"] == name))

    return {
        "v1/models": lambda route: route.fulfill(json={"data": models}),
        "v1/models/*": one,
    }


def test_the_page_in_a_tile(browser: Any) -> None:  # noqa: F811
    """In JupyterLab, the page follows the theme, lists a model that is saved later, and keeps the selected
    model.
    """
    models: list[dict[str, Any]] = []
    page = opened(browser, described(models), "http://lab.test/")
    tile = page.frame_locator("iframe")
    tile.get_by_text("No run has a checkpoint yet.").wait_for()
    generate = tile.get_by_role("button", name="Generate")
    expect(generate).to_be_disabled()
    expect(generate).to_have_attribute("title", "No model is available yet.")
    root = tile.locator("html")
    expect(root).to_have_css("color-scheme", "dark")
    page.evaluate("""() => {
        document.body.style.setProperty('--jp-layout-color1', 'rgb(1, 2, 3)');
        document.body.dataset.jpThemeLight = 'true';
    }""")
    tile.locator("html[style*=light]").wait_for()
    expect(tile.locator("body")).to_have_css("background-color", "rgb(1, 2, 3)")
    models += [{"id": "gpt-a", "step": 20, "chat": False}, {"id": "gpt-b", "step": 40, "chat": True}]
    tile.get_by_label("Prompt").click()
    tile.locator("#model option", has_text="gpt-b, step 40").wait_for(state="attached")
    expect(tile.get_by_role("status")).to_have_text("")
    expect(generate).to_be_enabled()
    tile.get_by_label("Model").select_option("gpt-b")
    models[1]["step"] = 60
    root.evaluate("() => window.dispatchEvent(new Event('focus'))")
    tile.locator("#model option", has_text="gpt-b, step 60").wait_for(state="attached")
    expect(tile.get_by_label("Model")).to_have_value("gpt-b")
    page.close()


def test_chat_is_offered_to_models_that_can_and_tokens_have_their_probability(browser: Any) -> None:  # noqa: F811
    """The page opens with the run named in its address, two models answer one after the other, and axe-core
    finds no problem.
    """
    models = [{"id": "gpt-a", "step": 20, "chat": False}, {"id": "gpt-b", "step": 40, "chat": True}]
    asked: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        logprobs = {"tokens": [" the", " end"], "token_logprobs": [-0.01, -2.0], "text_offset": [0, 4]}
        logprobs["top_logprobs"] = [{" the": -0.01}, {" sea": -0.3, " end": -2.0}]
        choice = {"index": 0, "text": " the end", "logprobs": logprobs, "finish_reason": "length"}
        events = [{"choices": [choice]}, {"choices": [], "usage": {"completion_tokens": 2}}]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    models[1]["checkpoints"] = [20, 30, 40]
    page = opened(browser, {**described(models), "v1/completions": answer}, f"{BASE}?model=gpt-b")
    chat = page.get_by_label("Reply as in a chat")
    page.wait_for_function("() => document.getElementById('model').value === 'gpt-b'")
    chat.check()
    page.get_by_label("Compare with").select_option("gpt-a")
    page.get_by_text("gpt-a was not trained on conversations.").wait_for()
    expect(chat).to_be_disabled()
    expect(page.get_by_label("Continue the text")).to_be_checked()
    page.get_by_label("Mark uncertain tokens").check()
    page.get_by_label("Prompt").fill("This is")
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("2 tokens in").nth(1).wait_for()
    assert [one["model"] for one in asked] == ["gpt-b", "gpt-a"] and asked[0]["logprobs"] == 5
    text = page.get_by_role("log", name="Text of gpt-a")
    expect(text).to_have_text("This is the end")
    sure, unsure = text.locator(".token").all()
    assert unsure.get_attribute("title") == '" end": 13.5 %\n" sea": 74.1 %'
    doubts = [float(one.evaluate("node => node.style.getPropertyValue('--doubt')")) for one in (sure, unsure)]
    assert doubts == [0.01, 0.865]
    # Two checkpoints of one run.
    page.get_by_label("Compare with").select_option("gpt-b")
    older = page.get_by_label("The other checkpoint")
    older.select_option("20")
    expect(older.locator("option")).to_have_text(["newest, step 40", "step 30", "step 20"])
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("log", name="Text of gpt-b, step 20").get_by_text("This is the end").wait_for()
    page.get_by_text("2 tokens in").nth(1).wait_for()
    assert [one["model"] for one in asked[2:]] == ["gpt-b", "gpt-b@20"]
    expect(page.locator("h2")).to_have_text(["gpt-b, step 40", "gpt-b, step 20"])
    assert findings(page, axe_script(), ["main"]) == []
    page.close()
