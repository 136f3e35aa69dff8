"""nbtrain's extension in JupyterLab, in a real browser: sidebar, tabs, tiles, status, without a kernel."""

import re
from typing import Any

import pytest

from tests.end_to_end.jupyterlab import (
    PATIENCE_SECONDS,
    Lab,
    assert_step_advances,
    fake_job,
    screenshot,
)

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SIDEBAR_TAB = '.jp-SideBar [data-id="nbtrain-sidebar"]'


def open_lab(page: Any, lab: Lab) -> None:
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    page.locator(SIDEBAR_TAB).click()


def test_the_sidebar_opens_a_run_that_comes_back_after_a_reload_and_stops_it(lab: Lab, page: Any) -> None:
    """Tiles have a category of their own; the run's tab is live and restored; Stop in the sidebar ends it."""
    with fake_job(lab, "gpt-sidebar", "--steps", "4000") as job:
        open_lab(page, lab)
        section = page.locator(".jp-Launcher-section", has=page.get_by_text("nbtrain", exact=True))
        assert "TensorBoard" in section.locator(".jp-LauncherCard").all_inner_texts()
        assert page.locator(".jp-LauncherCard", has_text="TensorBoard").count() == 1
        screenshot(page, "extension-launcher")

        page.locator(".nbtrain-Sidebar [data-run=gpt-sidebar] .nbtrain-Open").click()
        page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
        assert_step_advances(page)
        screenshot(page, "extension-run")

        page.reload()
        page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
        assert_step_advances(page)
        page.locator(".nbtrain-Status", has_text="nbtrain: 1 run").wait_for()

        # Jupyter's own panel of what runs.
        page.locator('.jp-SideBar [data-id="jp-running-sessions"]').click()
        page.locator(".jp-RunningSessions-item", has_text=re.compile("gpt-sidebar.*RUNNING")).wait_for()
        screenshot(page, "extension-running")

        page.locator(SIDEBAR_TAB).click()
        page.get_by_role("button", name="Stop gpt-sidebar").click()
        assert job.wait(PATIENCE_SECONDS) == 0
        page.locator(".nbtrain-RunView [data-state=CANCELLED]").wait_for()
        page.get_by_text(re.compile("gpt-sidebar: CANCELLED")).first.wait_for()
        page.locator(".nbtrain-Status").wait_for(state="hidden")
        screenshot(page, "extension-stopped")


def test_without_the_server_half_the_sidebar_says_so(lab: Lab, page: Any) -> None:
    """In its place: no dialog covers JupyterLab."""
    page.route("**/nbtrain/runs*", lambda route: route.fulfill(status=404, body="not found"))
    open_lab(page, lab)
    word = page.locator(".nbtrain-Sidebar [role=status]", has_text="does not have the server half of nbtrain")
    word.wait_for()
    assert "pip install nbtrain" in word.inner_text()
    assert page.locator(".jp-Dialog").count() == 0
    assert not page.locator(".nbtrain-Status").is_visible()
    screenshot(page, "extension-without-server")
