"""Every place of the user interface at three widths in both themes: pictures, and findings of axe-core.

docs/evidence/ui-checklist.md lists what each picture must show. Pictures are written to build/ui/, or to the
folder NBTRAIN_SCREENSHOTS.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.accessible import axe_script, findings
from tests.end_to_end.jupyterlab import PATIENCE_SECONDS, REPOSITORY, Lab, fake_job
from tests.end_to_end.stations import LIVE, STATIONS, Station, choose_theme, record_dataset, record_runs

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
def test_a_place_is_pictured_and_has_no_serious_finding(
    station: Station, recorded: Lab, long_page: Any
) -> None:
    """No place scrolls horizontally, truncates text without a tooltip, or has a serious axe finding."""
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
