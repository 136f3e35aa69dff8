"""CPU of an open page: the browser's main thread, the whole browser and the server, version by version.

    python tests/benchmarks/browser_cost.py [TREE ...] [--steps 200000] [--runs 311] [--seconds 40]
                                            [--times 1]

TREE is the folder of a version of nbtrain, such as an unpacked `git archive`; this version is always measured
last. Each version writes its runs with its own code and is shown by its own labextension. The pages:

    launcher   JupyterLab alone
    live       a run that makes one step a second, open on Overview
    long       the same for a run that has already made --steps steps
    list       a tab with the list of --runs ended runs and the two live ones

For each, CPU is printed as a fraction of a core, with what the page adds to the launcher. After the first
version, the ratio of that addition to the first version's is printed too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.process_clock import cpu_seconds_of
from tests.benchmarks.server_cost import server_pid
from tests.end_to_end.jupyterlab import CHROMIUM_FLAGS, REPOSITORY, Lab, find_chromium, running_lab
from tests.end_to_end.test_page_cost import browser_seconds
from tests.waiting import wait_until

SETTLE_MS = 15_000
Shares = dict[str, float]
"""Fractions of a core, by process."""

# Only what all versions have: FakeJob(run, steps), one_step() and scalars(). Modules have moved meanwhile.
LIVE = """
import os, sys, time
from pathlib import Path
from tests.lab.widgets.fake_run import FakeJob, RunDir
folder, done = Path(sys.argv[1]), int(sys.argv[2])
job = FakeJob(RunDir(folder), 2 * done + 10_000)
flush, events = job.tensorboard.flush, getattr(job.tensorboard, "_events", None)
job.tensorboard.flush = lambda: None
if events:
    # The page reads metrics.jsonl. Event files of so many steps take minutes.
    add, events.add_event = events.add_event, lambda event: None
for job.step in range(1, done + 1):
    loss = 3 + 5 / (1 + job.step / 1000) + job.step * 7919 % 101 / 1000
    values = {"validation_loss": loss + 0.1} if job.step % 1000 == 0 else {}
    job.scalars(loss=loss, learning_rate=1e-3, grad_norm=loss / 8, tokens_per_second=5000 + job.step % 17,
                host_memory_bytes=5e8, **values)
job.tensorboard.flush = flush
if events:
    events.add_event = add
job.one_step()
(folder / "ready").touch()
while True:
    time.sleep(1)
    job.one_step()
"""
ENDED = """
import json, shutil, sys
from pathlib import Path
from tests.lab.widgets.fake_run import FakeJob, RunDir
output, count = Path(sys.argv[1]), int(sys.argv[2])
job = FakeJob(RunDir(output / "gpt-000"), 200)
for _ in range(200):
    job.one_step()
job.finish("SUCCEEDED", "done")
for number in range(1, count):
    copy = output / f"gpt-{number:03d}"
    shutil.copytree(output / "gpt-000", copy)
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "run_id": f"{number:016x}", "name": copy.name}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=311)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    trees = [*(tree.resolve() for tree in options.trees), REPOSITORY]
    for _ in range(options.times):
        first: dict[str, Shares] = {}
        for tree in trees:
            print(f"{tree.name}, load {os.getloadavg()[0]:.0f}:", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                found = measured(tree, Path(folder), options)
            first = first or found
            for page, shares in found.items():
                print(f"  {page:9} {words(page, shares, found['launcher'], first)}", flush=True)


def words(page: str, shares: Shares, launcher: Shares, first: dict[str, Shares]) -> str:
    parts = []
    for process, share in shares.items():
        text = f"{process} {share:.1%}"
        if page != "launcher":
            added, before = share - launcher[process], first[page][process] - first["launcher"][process]
            text += f" ({added:+.1%}"
            text += f", {added / before:.2f} times)" if shares is not first[page] and before > 0 else ")"
        parts.append(text)
    return "; ".join(parts)


def measured(tree: Path, root: Path, options: argparse.Namespace) -> dict[str, Shares]:
    """Return the shares of each page of a version."""
    from playwright.sync_api import sync_playwright

    output, variables = root / "output", {"PYTHONPATH": str(tree), "NBTRAIN_WORKSPACE": str(tree)}
    output.mkdir()
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", ENDED, str(output), str(options.runs)]
    subprocess.run(command, cwd=tree, env=environment, check=True)
    bundles = tree / "nbtrain" / "lab" / "labextension" / "prebuilt"
    with (
        live(tree, output / "gpt-live", 20, environment),
        live(tree, output / "gpt-long", options.steps, environment),
        running_lab(root, bundles=bundles, **variables) as lab,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.set_default_timeout(300_000)
        try:
            return pages(page, lab, options.seconds)
        finally:
            browser.close()


@contextmanager
def live(tree: Path, folder: Path, done: int, environment: dict[str, str]) -> Iterator[None]:
    """Run a job that has made `done` steps and then makes one a second."""
    command = [sys.executable, "-c", LIVE, str(folder), str(done)]
    job = subprocess.Popen(command, cwd=tree, env=environment)
    try:
        wait_until(lambda: (folder / "ready").exists() or job.poll() is not None, "no step was made")
        assert job.poll() is None, "the job has ended"
        yield
    finally:
        job.kill()
        job.wait()


def pages(page: Any, lab: Lab, seconds: float) -> dict[str, Shares]:
    pid = server_pid(lab.base)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def now() -> Shares:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        # The CPU time of its tasks: on a busy machine, their wall time is longer.
        main_thread = next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")
        return {"main thread": main_thread, "browser": browser_seconds(), "server": cpu_seconds_of(pid)}

    def shares(show: Callable[[], None]) -> Shares:
        page.goto(lab.url("lab?reset"))
        page.locator(".jp-Launcher").wait_for()
        show()
        page.wait_for_timeout(SETTLE_MS)
        before, began = now(), time.monotonic()
        page.wait_for_timeout(1000 * seconds)
        after, passed = now(), time.monotonic() - began
        return {process: (after[process] - before[process]) / passed for process in before}

    def run(name: str) -> Callable[[], None]:
        def show() -> None:
            page.evaluate(f"() => void window.nbtrainHost.openRun('{name}')")
            page.locator(f".nbtrain-RunView [data-run={name}] polyline").first.wait_for()

        return show

    def runs() -> None:
        page.evaluate("() => void window.nbtrainHost.openRuns()")
        page.locator(".nbtrain-RunsView tr.nbt-run").nth(50).wait_for()

    shown = {"launcher": lambda: None, "live": run("gpt-live"), "long": run("gpt-long"), "list": runs}
    return {name: shares(show) for name, show in shown.items()}


if __name__ == "__main__":
    main()
