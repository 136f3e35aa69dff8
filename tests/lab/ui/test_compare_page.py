"""The comparison in a browser, without a server or a kernel: one line per run, tables, axes."""

import re
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
    """Return the route for metrics of a run; the first answer has half of its event files."""
    view, looks = RunView(run), []

    def answer(query: dict[str, str], _: Any) -> Any:
        looks.append(query)
        found = metrics(view, Asked(tuple(query.get("tags", "loss").split("%2C"))))
        if len(looks) > 2:
            return found
        halves = {name: {**part, **half(part)} for name, part in found["series"].items()}
        return {**found, "series": halves, "reading": 0.5}

    return answer


def half(part: dict[str, Any]) -> dict[str, Any]:
    return {key: part[key][: len(part[key]) // 2] for key in ("step", "time", "tokens", "value")}


def test_runs_side_by_side(tmp_path: Path, browser: Any) -> None:
    """Each chart has both runs in their colors, another axis moves them, and a name opens its run."""
    runs = [ended_run(tmp_path, name, steps) for name, steps in (("gpt-a", 12), ("gpt-b", 8))]
    routes = {"compare": lambda query, body: compared(runs)}
    routes |= {f"run/{run.name}/metrics": curves_of(run) for run in runs}
    host = "{openRun: (name) => (window.opened = name)}"
    mount = f"ui.mountComparison(root, {{names: ['gpt-a', 'gpt-b'], host: {host}}})"
    with view_page(browser, routes, mount, module="compare_widget") as page:
        charts = page.locator(".nbtrain-compare .nbt-chart")
        charts.first.locator("polyline").first.wait_for()
        # A finished run is read to its end.
        charts.first.locator(".nbt-x", has_text="12").wait_for()
        assert page.locator(".nbtrain-compare [aria-live]").inner_text() == ""
        # The buttons with the names show each run's color for all charts.
        named = page.locator(".nbtrain-compare .nbt-tools button", has_text=re.compile("^gpt-"))
        colors = named.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).borderLeftColor)")
        lines = charts.first.locator("polyline:not(.nbt-raw)")
        assert lines.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).stroke)") == colors
        assert len(set(colors)) == 2 and charts.first.locator(".nbt-legend i").count() == 0
        shown = charts.count()
        assert page.get_by_role("cell", name="sequence length").count() == 1
        page.get_by_label("all curves").check()
        assert charts.count() > shown
        page.get_by_label("axis of the charts").select_option("time")
        assert charts.first.locator(".nbt-x").last.text_content().startswith("time ")
        page.get_by_role("button", name="gpt-b").click()
        assert page.evaluate("window.opened") == "gpt-b"


def test_runs_that_the_server_does_not_have_are_not_opened_there(browser: Any) -> None:
    """Runs of another output directory are not opened on this server, which may have other runs of these
    names."""
    traits = "{names: ['gpt-a', 'gpt-b'], root_id: 'another', value: null}"
    mount = (
        "(window.nbtrainHost = {openRun() {}}, "
        f"ui.default.render({{model: {{get: (name) => ({traits})[name]}}, el: root}}))"
    )
    routes = {"runs": lambda query, body: {"runs": [], "run_root_id": "this"}}
    with view_page(browser, routes, mount, module="compare_widget") as page:
        page.get_by_text("this page cannot reach a Jupyter server that has these runs").wait_for()
        names = page.locator(".nbtrain-compare .nbt-tools").first
        assert names.locator("span").all_inner_texts() == ["gpt-a", "gpt-b"]
        assert names.locator("button").count() == 0
