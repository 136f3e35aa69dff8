"""The comparison in a browser, without a server or kernel: one line per run, tables and axes."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.ui.script import script
from nbtrain.monitor.run.metrics_range import CurvesRequest, metrics
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.runs.compare import MOST_RUNS, compared, tables
from nbtrain.monitor.runs.published import parse_published
from tests.lab.server.conftest import ended_run
from tests.lab.ui.pages import view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def curves_of(run: RunDir) -> Any:
    """Return the metrics route of a run; its first response has read only half of the event files."""
    view, looks = RunView(run), []

    def answer(query: dict[str, str], _: Any) -> Any:
        looks.append(query)
        found = metrics(view, CurvesRequest(tuple(query.get("tags", "loss").split("%2C"))))
        if len(looks) > 2:
            return found
        halves = {name: {**part, **half(part)} for name, part in found["series"].items()}
        return {**found, "series": halves, "reading": 0.5}

    return answer


def half(part: dict[str, Any]) -> dict[str, Any]:
    return {key: part[key][: len(part[key]) // 2] for key in ("step", "time", "tokens", "value")}


HOST = "{openRun: (name) => (window.opened = name)}"
CHANGED = "(names) => (window.names = names)"


def mounted(names: list[str]) -> str:
    """Return JavaScript that mounts a comparison of the runs `names`."""
    return f"ui.mountComparison(root, {{names: {names}, host: {HOST}, changed: {CHANGED}}})"


def chip(page: Any, name: str) -> Any:
    return page.locator(f".nbt-chip[data-run={name}]")


def test_runs_side_by_side(tmp_path: Path, browser: Any) -> None:
    """Each chart shows both runs in their colors, changing the axis redraws them, and clicking a name opens
    the run.
    """
    runs = [ended_run(tmp_path, name, steps) for name, steps in (("gpt-a", 12), ("gpt-b", 8))]
    routes = {"compare": lambda query, body: compared(runs)}
    routes |= {f"run/{run.name}/metrics": curves_of(run) for run in runs}
    mount = f"ui.mountComparison(root, {{names: ['gpt-a', 'gpt-b'], host: {HOST}}})"
    with view_page(browser, routes, mount, module="compare/compare_widget") as page:
        charts = page.locator(".nbtrain-compare .nbt-chart")
        charts.first.locator("polyline").first.wait_for()
        # A finished run is read to its end.
        charts.first.locator(".nbt-x", has_text="10").wait_for()
        expect(page.locator(".nbtrain-compare [aria-live]")).to_have_text("")
        # The chips say which colour is whose, for all charts.
        looks = page.locator(".nbt-chip .nbt-look i")
        colors = looks.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)")
        lines = charts.first.locator("polyline:not(.nbt-raw)")
        expect(lines).to_have_count(2)
        assert lines.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).stroke)") == colors
        # Each curve has its name at its end.
        ends = charts.first.locator(".nbt-end")
        expect(ends).to_have_count(2)
        assert sorted(ends.locator("title").all_text_contents()) == ["gpt-a", "gpt-b"]
        heights = sorted(float(end.get_attribute("y")) for end in ends.all())
        assert heights[1] - heights[0] >= 11 - 1e-6
        assert len(set(colors)) == 2 and charts.first.locator(".nbt-legend i").count() == 0
        shown = charts.count()
        expect(page.get_by_role("cell", name="sequence length")).to_have_count(1)
        page.get_by_label("all curves").check()
        charts.nth(shown).wait_for()
        page.get_by_label("axis of the charts").select_option("time")
        expect(charts.first.locator(".nbt-x.nbt-axis")).to_have_text(re.compile("^time "))
        page.get_by_role("button", name="Open gpt-b").or_(chip(page, "gpt-b").get_by_text("gpt-b")).click()
        assert page.evaluate("window.opened") == "gpt-b"


def test_a_comparison_survives_a_deleted_run_and_is_changed_by_its_user(tmp_path: Path, browser: Any) -> None:
    """A deleted run keeps its chip with the reason until the user removes it. Runs can be hidden and added, a
    baseline shows distances, and tables can be copied.
    """
    runs = {
        name: ended_run(tmp_path, name, steps) for name, steps in (("gpt-a", 12), ("gpt-b", 8), ("gpt-c", 5))
    }
    asked: list[list[str]] = []

    def answer(query: dict[str, str], body: Any) -> Any:
        names = body["runs"] if body else query["runs"].split("%2C")
        asked.append(names)
        gone = {name: f"there is no run '{name}' under output." for name in names if name not in runs}
        published = parse_published(body["published"]["text"], body["published"]["file"]) if body else ()
        return tables([runs[name] for name in names if name in runs], gone, published)

    def metrics_that_fail(query: dict[str, str], _: Any) -> Any:
        raise ConfigError("the event file is damaged.")

    routes = {"compare": answer, "run/gpt-c/metrics": metrics_that_fail}
    routes |= {f"run/{name}/metrics": curves_of(runs[name]) for name in ("gpt-a", "gpt-b")}
    routes["runs"] = lambda query, body: {"runs": [{"name": name} for name in runs]}
    with view_page(
        browser, routes, mounted(["gpt-a", "gpt-gone", "gpt-b"]), module="compare/compare_widget"
    ) as page:
        page.get_by_text("gpt-gone is not shown: there is no run 'gpt-gone' under output.").wait_for()
        results = page.get_by_label("results of the runs")
        heads = results.locator("th")
        expect(heads).to_have_text(["result", "gpt-a", "gpt-b"])
        # By the keyboard: the focus stays among the chips.
        with page.expect_response(lambda answer: "runs=gpt-a%2Cgpt-b&" in answer.url):
            page.get_by_role("button", name="Remove gpt-gone from the comparison").press("Enter")
        page.wait_for_function("() => window.names && !window.names.includes('gpt-gone')")
        assert asked[-1] == ["gpt-a", "gpt-b"]
        expect(chip(page, "gpt-gone")).to_have_count(0)
        expect(page.get_by_text("is not shown")).to_have_count(0)

        # The lower loss is the best; against the baseline it has a sign.
        row = results.locator("tr", has=page.get_by_role("cell", name="trained tokens"))
        page.get_by_label("baseline").select_option("gpt-a")
        expect(row.locator("td").nth(2)).to_have_text(re.compile("\u221233.3 %$"))
        results.locator(".nbt-best").first.wait_for()
        page.get_by_role("button", name="Hide gpt-b").click()
        expect(heads).to_have_text(["result", "gpt-a"])
        expect(page.locator(".nbt-chart").first.locator("polyline:not(.nbt-raw)")).to_have_count(1)
        page.get_by_role("button", name="Show gpt-b").click()
        before = results.locator("tr").count()
        results_tools = page.locator(".nbt-tools", has=page.get_by_role("heading", name="Results"))
        # Others' figures are columns too; a file with a mistake is reported, and the runs stay.
        files = page.locator(".nbt-published input[type=file]")
        files.set_input_files({"name": "o.yaml", "mimeType": "", "buffer": b"345M:\n  loss: 1.5"})
        results.get_by_role("columnheader", name="345M").wait_for()
        loss = results.locator("tr", has=page.get_by_role("cell", name="loss", exact=True))
        best = loss.locator(".nbt-best")
        expect(best).to_have_text(re.compile(r"^1\.5000"))
        page.get_by_role("button", name="Remove published figures").click()
        results.get_by_role("columnheader", name="345M").wait_for(state="detached")
        files.set_input_files({"name": "o.yaml", "mimeType": "", "buffer": b"345M:\n  loss: low"})
        page.get_by_text("The figures of o.yaml are not shown: o.yaml:2: loss = low must be").wait_for()
        expect(heads).to_have_text(["result", "gpt-a", "gpt-b"])
        results_tools.get_by_label("Only differences").check()
        assert results.locator("tr").count() < before
        settings = page.locator(".nbt-tools", has=page.get_by_role("heading", name="Settings"))
        settings.get_by_label("Only differences").uncheck()
        assert (
            page.get_by_label("settings of the runs").get_by_role("cell", name="model.num_layers").count()
            == 1
        )

        # A run whose curves cannot be read is in the tables.
        page.get_by_text("Add a run").click()
        page.get_by_role("button", name="gpt-c").click()
        page.get_by_text("The curves of gpt-c cannot be read: the event file is damaged.").wait_for()
        expect(heads).to_have_text(["result", "gpt-a", "gpt-b", "gpt-c"])
        assert page.evaluate("window.names") == ["gpt-a", "gpt-b", "gpt-c"]
        page.evaluate("() => { document.execCommand = () => (window.text = document.activeElement.value); }")
        for form, begins in (
            ("Markdown", "| result | gpt-a |"),
            ("CSV", "result,gpt-a"),
            ("LaTeX", "\\begin{tabular}{lrrr}"),
        ):
            results_tools.locator("summary").click()
            page.get_by_role("button", name=f"As {form}").click()
            page.wait_for_function("(begins) => (window.text || '').startsWith(begins)", arg=begins)


def test_the_page_and_the_server_take_equally_many_runs() -> None:
    assert f"MOST_COMPARED = {MOST_RUNS};" in script("compare/compare")


def test_runs_that_the_server_does_not_have_are_not_opened_there(browser: Any) -> None:
    """Runs in another output directory cannot be opened on this server, which may have other runs with the
    same names.
    """
    traits = "{names: ['gpt-a', 'gpt-b'], root_id: 'another', value: null, published: {}}"
    mount = (
        "(window.nbtrainHost = {openRun() {}}, "
        f"ui.default.render({{model: {{get: (name) => ({traits})[name]}}, el: root}}))"
    )
    routes = {"runs": lambda query, body: {"runs": [], "run_root_id": "this"}}
    with view_page(browser, routes, mount, module="compare/compare_widget") as page:
        page.get_by_text("this page cannot reach a Jupyter server that has these runs").wait_for()
        names = page.locator(".nbt-chip-name")
        expect(names).to_have_text(["gpt-a", "gpt-b"])
        assert page.locator("button.nbt-chip-name").count() == 0
        assert not page.get_by_text("Add a run").is_visible()
