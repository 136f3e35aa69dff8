"""The comparison in a browser, without a server or a kernel: one line for each run, tables, axes."""

from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.rundir import RunDir
from nbtrain.monitor.compare import compared
from nbtrain.monitor.metrics_range import Asked, metrics
from nbtrain.monitor.run_view import RunView
from tests.lab.server.conftest import ended_run
from tests.lab.ui.pages import view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def curves_of(run: RunDir) -> Any:
    """The route metrics of a run."""
    view = RunView(run)
    return lambda query, body: metrics(view, Asked(tuple(query.get("tags", "loss").split("%2C"))))


def test_runs_side_by_side(tmp_path: Path, browser: Any) -> None:
    """Both runs are in each chart, in their colours; another axis moves them; a name opens its run."""
    runs = [ended_run(tmp_path, name, steps) for name, steps in (("gpt-a", 12), ("gpt-b", 8))]
    routes = {"compare": lambda query, body: compared(runs)}
    routes |= {f"run/{run.name}/metrics": curves_of(run) for run in runs}
    host = "{openRun: (name) => (window.opened = name)}"
    mount = f"ui.mountComparison(root, {{names: ['gpt-a', 'gpt-b'], host: {host}}})"
    with view_page(browser, routes, mount, module="compare_widget") as page:
        charts = page.locator(".nbtrain-compare .nbt-chart")
        charts.first.locator("polyline").first.wait_for()
        assert charts.first.locator(".nbt-legend i").all_text_contents() == ["gpt-a", "gpt-b"]
        shown = charts.count()
        assert page.get_by_role("cell", name="sequence length").count() == 1
        page.get_by_label("all curves").check()
        assert charts.count() > shown
        page.get_by_label("axis of the charts").select_option("time")
        assert charts.first.locator(".nbt-x").last.text_content().startswith("time ")
        page.get_by_role("button", name="gpt-b").click()
        assert page.evaluate("window.opened") == "gpt-b"
