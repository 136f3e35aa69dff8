"""The static pages of runs, as papermill and an HTML export show them, in a browser at two widths."""

from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.widgets.panel import report_html
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob, measure

pytestmark = [pytest.mark.slow, pytest.mark.browser]

# Elements that are wider than the page, except in a frame that scrolls.
CUT = """() => [...document.querySelectorAll("body *")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
    .filter((node) => !node.closest("[style*='overflow-x:auto']"))
    .map((node) => node.outerHTML.slice(0, 120))"""


def test_a_static_page_has_one_width_and_nothing_is_cut(tmp_path: Path, browser: Any) -> None:
    """At 420 pixels charts are below each other, at 1,012 beside; wide tables scroll in their frames."""
    job = FakeJob(RunDir(tmp_path / "gpt-static"), 60, world_size=2)
    measure(job, gpu=True)
    for _ in range(60):
        job.one_step()
    job.finish("FAILED", "rank 1 failed at step 60: torch.OutOfMemoryError: CUDA out of memory. " * 4)
    page = browser.new_context(viewport={"width": 420, "height": 800}).new_page()
    page.set_content(f"<body style='margin:0'>{report_html(RunView(job.run))}</body>")
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    pictures = page.locator("img")
    column = {round(picture.bounding_box()["x"]) for picture in pictures.all()}
    assert len(column) == 1 and pictures.count() > 6
    assert page.get_by_text("Plan", exact=True).count() <= 1
    page.set_viewport_size({"width": 1012, "height": 800})
    assert page.evaluate(CUT) == []
    assert len({round(picture.bounding_box()["x"]) for picture in pictures.all()}) >= 3
    page.context.close()
