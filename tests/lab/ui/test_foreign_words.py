"""Text from users and programs is escaped in every view: names, tags, notes, causes, events and log lines."""

from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.ui.listed import ListServer
from tests.lab.ui.pages import routes_of, view_page
from tests.lab.ui.test_runs import listing
from tests.lab.widgets.fake_run import FakeJob

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SCRIPT = "<img src=x onerror=window.ran=1><script>window.ran=1</script>\"'><svg onload=window.ran=1>"
ELEMENTS = "document.querySelectorAll('#root img, #root script, #root [onload], #root [onerror]').length"


def assert_nothing_ran(page: Any) -> None:
    # A missing image reports an error after its request.
    page.evaluate("() => new Promise((done) => setTimeout(done, 300))")
    assert page.evaluate("window.ran") is None
    assert page.evaluate(ELEMENTS) == 0


@pytest.mark.parametrize("compact", [False, True])
def test_the_list_of_runs(browser: Any, compact: bool) -> None:
    """A folder in the output directory may have any name; the row, menu, editor and confirmation show it as
    text.
    """
    server = ListServer(3)
    server.row("gpt-0002").update(
        name=SCRIPT, labels={SCRIPT: SCRIPT}, notes=SCRIPT, cause=SCRIPT, backend=SCRIPT, state="FAILED"
    )
    with listing(browser, server, compact=compact) as page:
        row = page.locator("tr.nbt-run", has=page.get_by_text(SCRIPT, exact=True))
        row.wait_for()
        assert row.locator(".nbt-tag").inner_text() == f"{SCRIPT}={SCRIPT}"
        row.locator(".nbt-row-menu").click()
        page.get_by_role("menuitem", name="Tags and notes").click()
        assert page.locator("form input").first.input_value() == f"{SCRIPT}={SCRIPT}"
        page.keyboard.press("Escape")
        page.get_by_label("show runs by tag").select_option(f"{SCRIPT}={SCRIPT}")
        row.wait_for()
        assert_nothing_ran(page)


def test_the_page_of_a_run(tmp_path: Path, browser: Any) -> None:
    """The cause, events, log and tooltips of a run and announced changes of its state are shown as text."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40)
    job.one_step()
    job.events.write("alert", SCRIPT)
    with job.job.log(0, 0).open("a") as log:
        log.write(f"{SCRIPT}\n")
    with view_page(browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake'})") as page:
        page.locator(".nbt-pill", has_text="RUNNING").wait_for()
        page.get_by_role("tabpanel").get_by_text(SCRIPT).first.wait_for()
        page.get_by_role("tab", name="Logs").click()
        page.locator("pre", has_text=SCRIPT).wait_for()
        job.finish("FAILED", SCRIPT)
        page.locator(".nbt-failure .nbt-cause", has_text=SCRIPT).wait_for()
        page.get_by_role("tab", name="Overview").click()
        page.get_by_role("tabpanel").get_by_text(SCRIPT).first.wait_for()
        assert SCRIPT in page.locator("[aria-live=polite]").first.inner_text()
        assert_nothing_ran(page)


def test_a_message_of_the_server(browser: Any) -> None:
    """An error message of the server, which quotes the request, is shown as text."""
    with view_page(browser, {}, "ui.mount(root, {name: 'gpt-fake'})") as page:
        page.route("**/nbtrain/run/**", lambda route: route.fulfill(status=404, json={"message": SCRIPT}))
        page.get_by_text(SCRIPT).first.wait_for()
        assert_nothing_ran(page)
