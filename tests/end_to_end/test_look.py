"""Every place of the user interface at three widths in both themes: pictures, and findings of axe-core.

docs/evidence/ui-checklist.md lists what each picture must show. Pictures are written to build/ui/, or to the
folder NBTRAIN_SCREENSHOTS.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from traitlets.config import Config

from tests.end_to_end.accessible import axe_script, findings
from tests.end_to_end.jupyterlab import REPOSITORY, Lab, fake_job, write_notebook
from tests.end_to_end.stations import (
    CELLS,
    LIVE,
    OUTPUT,
    STATIONS,
    Station,
    choose_theme,
    record_dataset,
    record_runs,
)
from tests.lab.test_export import CONFIG
from tests.lab.ui.test_static_pages import CUT
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

PICTURES = Path(os.environ.get("NBTRAIN_SCREENSHOTS") or REPOSITORY / "build" / "ui")
WIDTHS = (620, 1000, 1400)
THEMES = ("Light", "Dark")
HEIGHT = 900
# A notebook shows a complete output.
OUTPUT_HEIGHT = 1900
SIDEBAR_PIXELS = 300


@pytest.fixture(scope="module")
def recorded(lab: Lab) -> Iterator[Lab]:
    record_runs(lab)
    record_dataset(lab)
    with fake_job(lab, LIVE, "--steps", "40000"):
        yield lab


@pytest.fixture(scope="module")
def long_page(recorded: Lab, browser: Any) -> Iterator[Any]:
    """Open one browser page that all stations use."""
    context = browser.new_context(viewport={"width": 1400, "height": HEIGHT})
    page = context.new_page()
    page.set_default_timeout(1000 * min(PATIENCE_SECONDS, 180))
    page.goto(recorded.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    yield page
    context.close()


@pytest.mark.parametrize("station", STATIONS, ids=lambda station: station.name)
def test_a_place_is_pictured_and_has_no_finding(station: Station, recorded: Lab, long_page: Any) -> None:
    """No place scrolls horizontally, truncates text without a tooltip, or has a finding of axe-core."""
    page, script, wrong = long_page, axe_script(), []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": 1400, "height": HEIGHT})
    station.show(page, recorded)
    for theme in THEMES:
        choose_theme(page, theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": OUTPUT_HEIGHT if station.picture else HEIGHT})
            settle(page)
            if station.name == "sidebar":
                # JupyterLab first distributes a new width.
                narrow_sidebar(page, width)
                settle(page)
            path = PICTURES / f"{station.name}-{width}-{theme.lower()}.png"
            place = page.locator(station.picture).first if station.picture else page
            place.screenshot(path=str(path))
            wrong += [f"{theme} {width}: {words}" for words in overflowing(page, station)]
        if station.ours:
            wrong += [f"{theme}: {words}" for words in findings(page, script, station.ours)]
    assert wrong == [], "\n".join(wrong)


STATIC_WIDTHS = (420, 1012)
# nbconvert's own cells scroll long lines of code.
CUT_OUTPUT = CUT.replace("body *", ".jp-OutputArea-output *")


@pytest.fixture(scope="module")
def executed(recorded: Lab) -> Any:
    """Run all cells of the stations in one notebook, without a browser."""
    write_notebook(recorded, "static.ipynb", "import nbtrain as nb", *(line for line, _ in CELLS.values()))
    path = recorded.root / "notebooks" / "static.ipynb"
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(path)]
    done = subprocess.run(command, env=recorded.environment, cwd=path.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return nbformat.read(path, 4)


@pytest.mark.parametrize("theme", THEMES)
def test_a_static_page_is_pictured_and_has_no_finding(
    theme: str, executed: Any, browser: Any, tmp_path: Path
) -> None:
    """In the HTML export of a notebook, nothing leaves the page at two widths, in both themes."""
    exporter = HTMLExporter(config=Config(CONFIG), theme=theme.lower())
    (tmp_path / "static.html").write_text(exporter.from_notebook_node(executed)[0])
    page, script, wrong = browser.new_page(), axe_script(), []
    page.goto((tmp_path / "static.html").as_uri())
    for width in STATIC_WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(PICTURES / f"static-{width}-{theme.lower()}.png"), full_page=True)
        wrong += [f"{width}: cut: {words}" for words in page.evaluate(CUT_OUTPUT)]
        wrong += [f"{width}: {words}" for words in findings(page, script, OUTPUT)]
    page.close()
    assert wrong == [], "\n".join(wrong)


def settle(page: Any) -> None:
    """Wait until the charts are redrawn for the new width."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 500)))")


def narrow_sidebar(page: Any, width: int) -> None:
    """Set the sidebar to a width that a user might choose."""
    page.evaluate(
        """([wanted, all]) => {
            window.jupyterapp.shell._hsplitPanel.setRelativeSizes([wanted / all, 1 - wanted / all, 0]);
        }""",
        [SIDEBAR_PIXELS, width],
    )


def overflowing(page: Any, station: Station) -> list[str]:
    """Return nbtrain's elements that are wider than their container, or that
    truncate text without a tooltip.
    """
    return page.evaluate(
        """(within) => {
            const wrong = [];
            for (const one of within) for (const top of document.querySelectorAll(one)) {
                if (top.scrollWidth > top.clientWidth + 1 && top.clientWidth)
                    wrong.push(`${one} scrolls sideways: ${top.scrollWidth} > ${top.clientWidth}`);
                for (const node of top.querySelectorAll("*")) {
                    const style = getComputedStyle(node);
                    if (!node.offsetWidth || !/hidden|clip/.test(style.overflowX)) continue;
                    if (node.closest("[hidden], .nbt-unseen") || !node.textContent.trim()) continue;
                    if (node.scrollWidth > node.clientWidth + 1 && !node.closest("[title]"))
                        wrong.push(`cut: ${node.className}: ${node.textContent.slice(0, 80)}`);
                }
            }
            return [...new Set(wrong)];
        }""",
        list(station.ours),
    )
