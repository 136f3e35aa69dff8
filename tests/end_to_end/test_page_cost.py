"""Cost of the page in a real browser: 1,000 runs, a run of a million scalar points, minutes of polling.

Times are printed (pytest -s), not asserted; docs/evidence/server.md has them. The test asserts that neither
the document nor the heap grows.
"""

import contextlib
import os
import statistics
import time
from typing import Any

import psutil
import pytest

from tests.benchmarks.list_runs import make_run
from tests.benchmarks.server_cost import make_long_run
from tests.end_to_end.jupyterlab import Lab, fake_job, screenshot
from tests.end_to_end.test_labextension import SIDEBAR_TAB

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

NUM_RUNS, NUM_POINTS = 1000, 1_000_000
MINUTES = float(os.environ.get("NBTRAIN_PAGE_MINUTES", "10"))
SAMPLE_SECONDS = 10.0
# The first minute fills curves (300 points each) and loads what JupyterLab loads late.
WARM_SECONDS = 60.0
ROWS = ".nbtrain-Sidebar .nbt-run"
LINES = "#nbtrain-run-{name} polyline"
# On the first page of a run: loss, learning rate, throughput, gradient norm.
NUM_LINES = 4
FROM_CLICK = """([what, least]) => {
    const seen = (one) => one.getClientRects().length > 0;
    const inSight = () => [...document.querySelectorAll(what)].filter(seen).length;
    window.nbtrainOpened = new Promise((resolve) => {
        addEventListener("pointerdown", () => {
            const begin = performance.now();
            // Drawn: the frame after the one in which all of them are there.
            const look = () => inSight() >= least
                ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - begin)))
                : requestAnimationFrame(look);
            look();
        }, { capture: true, once: true });
    });
}"""


def seconds_from_click(page: Any, button: Any, what: str, least: int) -> float:
    """Return the seconds from a click on a button until `least` elements of `what` are drawn."""
    page.evaluate(FROM_CLICK, [what, least])
    button.click()
    return page.evaluate("() => window.nbtrainOpened") / 1000


def cost(devtools: Any) -> dict[str, float]:
    """Return heap size after garbage collection, nodes and listeners of the whole
    page, JupyterLab included.
    """
    devtools.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    return {
        "heap MiB": found["JSHeapUsedSize"] / (1 << 20),
        "nodes": found["Nodes"],
        "listeners": found["JSEventListeners"],
    }


def test_a_long_list_and_a_long_run_open_at_once_and_polling_costs_no_memory(lab: Lab, page: Any) -> None:
    """Only one page of 1,000 rows is in the document, and memory stays constant
    during ten minutes of polling.
    """
    for number in range(NUM_RUNS):
        make_run(lab.output, number)
    make_long_run(lab.output / "gpt-long", NUM_POINTS)
    with fake_job(lab, "gpt-live", "--steps", "100000"):
        page.goto(lab.url("lab?reset"))
        page.locator(".jp-Launcher").wait_for()
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        before = cost(devtools)
        print(f"\nJupyterLab alone: {words(before)}")
        seconds = seconds_from_click(page, page.locator(SIDEBAR_TAB), ROWS, 100)
        print(f"from click to 100 rows of {NUM_RUNS + 2:,} runs: {seconds:.2f} s")
        assert page.locator(ROWS).count() == 100
        screenshot(page, "cost-list")
        for name in ("gpt-long", "gpt-live"):
            button = page.locator(f".nbtrain-Sidebar [data-run={name}] .nbt-open")
            lines = LINES.format(name=name)
            seconds = [seconds_from_click(page, button, lines, NUM_LINES)]
            screenshot(page, f"cost-{name}")
            for _ in range(3):
                page.evaluate("() => window.jupyterapp.shell.currentWidget.close()")
                seconds.append(seconds_from_click(page, button, lines, NUM_LINES))
            print(f"from click to the curves of {name}: {', '.join(f'{one:.2f}' for one in seconds)} s")
        samples, end = [], time.monotonic() + WARM_SECONDS + 60 * MINUTES
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            samples.append(cost(devtools))
        samples = samples[int(WARM_SECONDS / SAMPLE_SECONDS) :]
        third = max(1, len(samples) // 3)
        for key in before:
            first, last = (
                statistics.median(one[key] for one in part) for part in (samples[:third], samples[-third:])
            )
            most = max(one[key] for one in samples)
            print(f"{key}: {first:,.1f} at first, {last:,.1f} after {MINUTES:g} minutes, most {most:,.1f}")
            assert last <= 1.02 * first, f"{key} grows: {[one[key] for one in samples]}"


def words(found: dict[str, float]) -> str:
    return ", ".join(f"{value:,.0f} {key}" for key, value in found.items())


POLL_SECONDS = 40.0


def browser_seconds() -> float:
    """Return the CPU time that all browser processes of this test have used so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "chrom" in process.name():
                total += sum(process.cpu_times()[:2])
    return total


def shares(page: Any, devtools: Any) -> tuple[float, float]:
    """Measure the page's main thread and the whole browser over POLL_SECONDS, as fractions of a core."""

    def busy() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        # Its CPU time: on a busy machine, the wall time of its tasks is longer.
        return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")

    tasks, spent, began = busy(), browser_seconds(), time.monotonic()
    page.wait_for_timeout(1000 * POLL_SECONDS)
    seconds = time.monotonic() - began
    return (busy() - tasks) / seconds, (browser_seconds() - spent) / seconds


def test_an_open_live_page_takes_little_of_a_core(lab: Lab, page: Any) -> None:
    """With one step a second, the page updates curve and progress and animates
    nothing; its CPU use is printed.
    """
    with fake_job(lab, "gpt-slow", "--steps", "2000", "--step-seconds", "1"):
        page.goto(lab.url("lab?reset"))
        page.locator(".jp-Launcher").wait_for()
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        page.wait_for_timeout(10_000)
        words = "main thread {:.1%}, browser {:.1%} of a core"
        print(f"\nlauncher alone: {words.format(*shares(page, devtools))}")
        page.evaluate("() => void window.nbtrainHost.openRun('gpt-slow')")
        panel = page.locator("#nbtrain-run-gpt-slow .nbtrain-panel[data-state=RUNNING]")
        panel.locator("polyline").first.wait_for()
        page.wait_for_timeout(5_000)
        step = int(panel.get_attribute("data-step"))
        print(f"live page: {words.format(*shares(page, devtools))}")
        assert int(panel.get_attribute("data-step")) > step + 10
        assert page.evaluate("() => document.getAnimations().length") == 0
