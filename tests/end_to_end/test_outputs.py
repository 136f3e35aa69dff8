"""Outputs of notebooks in a browser: live, without a kernel, without a server
extension, and as offline HTML.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.monitor.status.notes import change_notes
from tests.dataset.dataset_maker import make_dataset
from tests.end_to_end.jupyterlab import (
    REPOSITORY,
    Lab,
    assert_step_advances,
    command,
    fake_job,
    kernel_busy,
    open_notebook,
    run_cell,
    saved,
    screenshot,
    stop_at_once,
    wait_for_kernel,
    write_notebook,
)
from tests.end_to_end.test_browser import CARD
from tests.lab.server.conftest import ended_run
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

# A cell that runs until the test releases it.
BUSY = 'import pathlib, time\n\nwhile not pathlib.Path("go").exists():\n    time.sleep(0.05)'


class List:
    """A list of runs in a notebook, as a user reads it."""

    def __init__(self, page: Any, number: int):
        self.node = page.locator(".nbtrain-runs").locator("visible=true").nth(number)

    def names(self) -> list[str]:
        rows = self.node.locator("tr.nbt-run")
        return sorted(rows.evaluate_all("rows => rows.map(row => row.dataset.run)"))

    def shows(self, *names: str) -> None:
        self.node.scroll_into_view_if_needed()
        wait_until(lambda: self.names() == sorted(names), lambda: f"{self.names()}, not {names}")

    def row(self, name: str) -> Any:
        return self.node.locator(f"tr[data-run='{name}']")

    def step(self, name: str) -> int:
        return int(self.row(name).locator("[data-column=step]").inner_text().split("/")[0].replace(",", ""))

    def advances(self, name: str) -> None:
        self.node.scroll_into_view_if_needed()
        before = self.step(name)
        wait_until(lambda: self.step(name) > before + 2, lambda: f"stays at step {before}")


def test_the_lists_of_runs_are_live(lab: Lab, page: Any) -> None:
    """Lists of all runs, of archived runs and of some runs are live while a cell runs.

    They are also live after a reload without their kernel.
    """
    change_notes(ended_run(lab.output, "gpt-archived", 3), archived=True)
    write_notebook(
        lab,
        "runs.ipynb",
        "import nbtrain as nb\n\nnb.runs()",
        "nb.runs(archived=True)",
        'nb.runs("listed", archived=True)',
        BUSY,
    )
    with fake_job(lab, "gpt-listed", "--steps", "4000") as job:
        open_notebook(page, lab, "runs.ipynb")
        for cell in range(3):
            run_cell(page, cell)
        page.locator(".nbtrain-runs").nth(2).wait_for()
        every, archived, some = (List(page, number) for number in range(3))
        every.shows("gpt-listed")
        archived.shows("gpt-archived", "gpt-listed")
        some.shows("gpt-listed")
        wait_for_kernel(page)

        run_cell(page, 3)
        wait_until(lambda: kernel_busy(lab), "the waiting cell did not start")
        for one in (every, archived, some):
            one.advances("gpt-listed")
        ended_run(lab.output, "gpt-later", 3)
        every.shows("gpt-listed", "gpt-later")
        archived.shows("gpt-archived", "gpt-listed", "gpt-later")
        # An archived run is listed while its job is active, and in a list that named it.
        change_notes(RunDir(lab.output / "gpt-listed"), archived=True)
        every.shows("gpt-listed", "gpt-later")
        every.row("gpt-listed").get_by_text("archived", exact=True).wait_for()
        every.advances("gpt-listed")
        some.shows("gpt-listed")
        assert kernel_busy(lab)
        screenshot(page, "outputs-runs")

        command(page, "docmanager:save")
        wait_until(
            lambda: saved(lab, "runs.ipynb").count("rescueRuns") == 3, lambda: "the notebook was not saved"
        )
        (lab.root / "notebooks" / "go").touch()
        lab.restart_kernels()
        page.reload()
        page.locator(".nbtrain-runs").locator("visible=true").nth(2).wait_for()
        every.shows("gpt-listed", "gpt-later")
        archived.shows("gpt-archived", "gpt-listed", "gpt-later")
        some.shows("gpt-listed")
        every.advances("gpt-listed")
        assert page.locator("text=Error displaying widget").locator("visible=true").count() == 0
        screenshot(page, "outputs-runs-reloaded")

        every.row("gpt-listed").get_by_role("button", name="Stop gpt-listed").click()
        assert job.wait(PATIENCE_SECONDS) == 0
        every.shows("gpt-later")
        some.shows("gpt-listed")
        some.row("gpt-listed").locator(".nbt-pill", has_text="CANCELLED").wait_for()


# Outputs that a notebook shows, with text of their pictures.
SHOWN = {
    'import nbtrain as nb\n\nnb.open_run("gpt-shown")': "all 20,480 tokens are done and saved",
    "nb.runs()": "gpt-second",
    'nb.compare(["gpt-shown", "gpt-second"])': "Settings that differ",
    'nb.launcher("gpt-tiny")': "Plan of gpt-tiny",
    'nb.tensorboard("gpt-shown")': "nbtrain tensorboard gpt-shown",
    'nb.data_card("card")': "bytes/token",
    'nb.what_if("gpt-1-3b-4xdp-4xpp")': "gpt-1-3b-4xdp-4xpp on 16 x A100-40GB",
    'nb.plan("gpt-125m")': "fits",
}
# Cells that are restored live with the server's help, and text that their pictures do not have.
LIVE = {3: "Peak learning rate."}
# Cells whose pictures have curves.
DRAWN = (0, 2, 4)


def test_what_is_saved_is_whole_without_its_kernel_and_without_a_network(
    lab: Lab, page: Any, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved notebook shows every kind of output when reopened, when untrusted, and
    as HTML without a network.
    """
    monkeypatch.setenv("NBTRAIN_DATA", lab.environment["NBTRAIN_DATA"])
    texts = [f"question {number}: what? answer: text {number}." for number in range(40)]
    make_dataset(RunConfig.model_validate(CARD), texts, learnt_from=[5] * 40)
    ended_run(lab.output, "gpt-shown", 20)
    ended_run(lab.output, "gpt-second", 10)
    write_notebook(lab, "whole.ipynb", *SHOWN)
    open_notebook(page, lab, "whole.ipynb")
    command(page, "notebook:run-all-cells")
    wait_until(lambda: has_run(page), "the cells have not run")
    page.wait_for_timeout(1000)
    wait_for_kernel(page)
    command(page, "docmanager:save")
    path = lab.root / "notebooks" / "whole.ipynb"
    wait_until(lambda: all_executed(path), "the notebook was not saved")
    content = json.loads(path.read_text())
    for cell, words in zip(content["cells"], SHOWN.values()):
        assert any(words in page_of(output) for output in cell["outputs"]), cell["source"]

    # Another kernel does not know it.
    lab.restart_kernels()
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    for number, words in enumerate(SHOWN.values()):
        cell_shows(page, number, LIVE.get(number, words))
        screenshot(page, f"outputs-reopened-{number}")
    assert page.locator("text=Error displaying widget").locator("visible=true").count() == 0

    # From another user: JupyterLab runs none of its scripts and strips inline SVG, as GitHub does.
    content["metadata"]["changed"] = "by somebody else"
    for cell in content["cells"]:
        cell["source"] = [*cell["source"], "\n# changed"]
    foreign = lab.root / "notebooks" / "foreign.ipynb"
    foreign.write_text(json.dumps(content))
    open_notebook(page, lab, "foreign.ipynb")
    for number, words in enumerate(SHOWN.values()):
        cell = cell_shows(page, number, words)
        assert cell.locator(".jp-RenderedHTMLCommon svg").count() == 0
        assert number not in DRAWN or images(cell) >= 1, list(SHOWN)[number]
        screenshot(page, f"outputs-foreign-{number}")

    # As a page without a network.
    convert = [sys.executable, "-m", "nbconvert", "--to", "html", str(path)]
    config = str(REPOSITORY / "nbtrain" / "lab" / "jupyter")
    environment = {**lab.environment, "JUPYTER_CONFIG_PATH": config}
    subprocess.run(convert, env=environment, check=True, capture_output=True)
    asked: list[str] = []
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 1000})
    alone = context.new_page()
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(path.with_suffix(".html").as_uri())
    cells = alone.locator(".jp-Cell")
    assert cells.count() == len(SHOWN)
    for number, words in enumerate(SHOWN.values()):
        assert words in cells.nth(number).inner_text(), list(SHOWN)[number]
        assert number not in DRAWN or images(cells.nth(number)) >= 1, list(SHOWN)[number]
    screenshot(alone, "outputs-offline")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def has_run(page: Any) -> bool:
    """Return whether every cell has an execution number; cells out of sight are not in the document."""
    cells = "window.jupyterapp.shell.currentWidget.content.widgets"
    return page.evaluate(f"() => {cells}.every((cell) => cell.model.executionCount)")


def all_executed(path: Path) -> bool:
    try:
        cells = json.loads(path.read_text())["cells"]
    except ValueError:
        # The file is being written.
        return False
    return all(cell["execution_count"] and cell["outputs"] for cell in cells)


def page_of(output: dict[str, Any]) -> str:
    return "".join(output.get("data", {}).get("text/html", ""))


def cell_shows(page: Any, number: int, words: str) -> Any:
    """Scroll to a cell of the open notebook and return it once it shows this text."""

    def shown() -> str:
        page.evaluate(
            """async (number) => {
                const content = window.jupyterapp.shell.currentWidget.content;
                content.activeCellIndex = number;
                await content.scrollToItem(number);
                content.widgets[number].node.id = `cell-${number}`;
            }""",
            number,
        )
        return " ".join(cell.locator(".jp-OutputArea-output").locator("visible=true").all_inner_texts())

    # Cells of a notebook that is still loading are replaced a moment later.
    cell = page.locator(f"#cell-{number}")
    wait_until(lambda: words in shown(), lambda: f"cell {number} shows {shown()[:500]!r}, not {words!r}")
    return cell


def images(node: Any) -> int:
    """Return the number of pictures that are actually drawn."""
    shown = (
        "nodes => nodes.filter(node => node.complete && node.naturalWidth > 1 && node.offsetWidth > 1).length"
    )
    return node.locator("img").evaluate_all(shown)


def test_widgets_without_the_server_half(plain_lab: Lab, page: Any) -> None:
    """Without the server extension, as in VS Code, a thread of the kernel updates
    widgets even while a cell runs.

    Stop goes to the kernel.
    """
    lab = plain_lab
    write_notebook(
        lab,
        "plain.ipynb",
        'import nbtrain as nb\n\nrun = nb.open_run("gpt-plain")\nrun',
        "nb.runs()",
        BUSY,
    )
    with fake_job(lab, "gpt-plain", "--steps", "40000") as job:
        open_notebook(page, lab, "plain.ipynb")
        run_cell(page, 0)
        page.wait_for_selector(".nbtrain-panel[data-state=RUNNING] .nbt-step")
        page.get_by_text("lacks nbtrain's server extension, so the values come from the kernel.").wait_for()
        assert_step_advances(page)
        tabs = page.locator(".nbtrain-panel .nbt-tabs")
        tabs.get_by_text("Resources", exact=True).click()
        page.locator(".nbtrain-panel .nbt-usage polyline").first.wait_for()
        tabs.get_by_text("Plan", exact=True).click()
        page.get_by_text("Showing the plan needs nbtrain's server extension").wait_for()
        tabs.get_by_text("Overview", exact=True).click()
        run_cell(page, 1)
        runs = List(page, 0)
        runs.shows("gpt-plain")
        page.get_by_text("lacks nbtrain's server extension, so the runs come from the kernel.").wait_for()
        runs.advances("gpt-plain")
        screenshot(page, "outputs-plain")

        run_cell(page, 2)
        wait_until(lambda: kernel_busy(lab), "the waiting cell did not start")
        assert_step_advances(page)
        runs.advances("gpt-plain")
        # The kernel has answered widgets in a subshell meanwhile, so that the server takes it for idle.
        assert page.locator(".jp-InputPrompt", has_text="[*]").count() == 1
        stop_at_once(page.locator(".nbtrain-panel").first)
        (lab.root / "notebooks" / "go").touch()
        page.wait_for_selector(".nbtrain-panel[data-state=CANCELLED]")
        assert job.wait(PATIENCE_SECONDS) == 0
        runs.row("gpt-plain").locator(".nbt-pill", has_text="CANCELLED").wait_for()
        screenshot(page, "outputs-plain-stopped")
