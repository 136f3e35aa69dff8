"""The places of nbtrain's user interface in JupyterLab, for pictures and for axe-core.

record_runs(lab)                    runs that ended in several ways
for station in STATIONS: station.show(page, lab)
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.monitor.status.notes import change_notes
from tests.dataset.dataset_maker import make_dataset
from tests.end_to_end.jupyterlab import Lab, open_notebook, run_cell, write_notebook
from tests.end_to_end.test_browser import CARD
from tests.lab.widgets.fake_run import FakeJob, measure

LIVE = "gpt-live"
LONG_NAME = "gpt-125m-2xdp-second-try-with-half-the-learning-rate"
OUT_OF_MEMORY = (
    "rank 1 failed at step 120: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 1 has a total capacity of 39.39 GiB of which 1.02 GiB is free."
)
TRACEBACK = """Traceback (most recent call last):
  File "nbtrain/train/loop.py", line 212, in train
    loss = engine.train_batch(batches)
  File "nbtrain/model/gpt.py", line 88, in forward
    hidden = layer(hidden)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def record_runs(lab: Lab) -> None:
    """Record four runs that ended: finished, failed, stopped, and finished with a long name."""
    for name, steps, until, end, cause in (
        ("gpt-done", 300, 300, "SUCCEEDED", "all 307,200 tokens are done and saved"),
        ("gpt-failed", 400, 120, "FAILED", OUT_OF_MEMORY),
        ("gpt-stopped", 300, 150, "CANCELLED", "stopped on request at step 150; saved"),
        (LONG_NAME, 200, 200, "SUCCEEDED", "all 204,800 tokens are done and saved"),
    ):
        job = FakeJob(RunDir(lab.output / name), steps, world_size=2)
        measure(job, gpu=name == "gpt-done")
        for _ in range(until):
            job.one_step()
        if end == "FAILED":
            job.job.log(1, 0).write_text(f"step 120: allocating\n{TRACEBACK}")
        else:
            job.job.log(1, 0).write_text("rank 1 is ready\n")
        job.job.supervisor_log.write_text("the supervisor's words\n")
        job.events.write("alert", "host memory 91 % is over max_host_memory_fraction = 90 %")
        # The tab Logs opens on the rank that failed first.
        job.finish(end, cause, failed_rank=1 if end == "FAILED" else None)
    change_notes(RunDir(lab.output / "gpt-done"), labels={"team": "nlp", "stage": "trial"})
    change_notes(
        RunDir(lab.output / LONG_NAME),
        labels={"team": "vision", "purpose": "learning-rate-search"},
        notes="Warm-up halved: compare with gpt-done before the long run of next week.",
    )


def record_dataset(lab: Lab) -> None:
    """Record the dataset `card`, which the data card shows."""
    draw = random.Random(0)
    words = "training a model needs text that is clean before tokens are made of it".split()  # noqa: SIM905
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 120))) + "." for _ in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_DATA", lab.environment["NBTRAIN_DATA"])
        make_dataset(RunConfig.model_validate(CARD), texts, dropped={"too_short": 3})


@dataclass(frozen=True)
class Station:
    """A place in the user interface: the function that shows it, and nbtrain's elements in it."""

    name: str
    show: Callable[[Any, Lab], None]
    ours: Sequence[str]
    """CSS selectors of nbtrain's elements, for axe-core."""
    picture: str = ""
    """CSS selector of the element to picture; "" for the whole page."""


def host(page: Any, call: str) -> None:
    page.evaluate(f"() => void window.nbtrainHost.{call}")


def alone(page: Any) -> None:
    """Close the sidebars and all tabs, so that the next place gets the page's full width."""
    page.evaluate(
        """() => {
            const { shell, commands } = window.jupyterapp;
            shell.collapseLeft();
            shell.collapseRight();
            [...shell.widgets("main")].forEach((one) => one.close());
        }"""
    )


def choose_theme(page: Any, name: str) -> None:
    """Choose the theme "Light" or "Dark", and wait until JupyterLab shows it."""
    page.evaluate(
        "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
        f"JupyterLab {name}",
    )
    page.locator(f"body[data-jp-theme-light={'true' if name == 'Light' else 'false'}]").wait_for(
        state="attached"
    )
    # JupyterLab covers the page while it changes its colors.
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def sidebar(page: Any, lab: Lab) -> None:
    alone(page)
    page.evaluate("() => window.jupyterapp.shell.activateById('nbtrain-sidebar')")
    page.locator(f".nbtrain-Sidebar [data-run={LIVE}] .nbt-open").wait_for()


def launcher(page: Any, lab: Lab) -> None:
    alone(page)
    page.locator(".jp-LauncherCard", has_text="New Run").wait_for()


def runs(page: Any, lab: Lab) -> None:
    alone(page)
    host(page, "openRuns()")
    page.locator(f"#nbtrain-runs tr[data-run={LIVE}]").wait_for()


def run_tab(name: str, tab: str, sign: str) -> Callable[[Any, Lab], None]:
    """Return a function that shows a tab of a run; `sign` selects the element that appears last."""

    def show(page: Any, lab: Lab) -> None:
        alone(page)
        host(page, f"openRun('{name}')")
        page.locator(f".nbtrain-RunView [data-run={name}]").get_by_role("tab", name=tab).click()
        page.locator(f".nbtrain-RunView {sign}").first.wait_for()

    return show


def compare(page: Any, lab: Lab) -> None:
    alone(page)
    host(page, f"openCompare(['gpt-done', 'gpt-stopped', '{LONG_NAME}'])")
    page.locator(".nbtrain-CompareView polyline").nth(2).wait_for()
    page.locator(".nbtrain-CompareView table[aria-label='settings of the runs'] td").first.wait_for()


def form(page: Any, lab: Lab) -> None:
    alone(page)
    host(page, "openForm({yaml: 'gpt-125m-2xdp'})")
    page.locator(".nbtrain-FormView .nbf-found p").first.wait_for()


def form_problems(page: Any, lab: Lab) -> None:
    form(page, lab)
    field = page.locator(".nbtrain-FormView .nbf-field[data-key='batch.micro_batch_size'] input").first
    field.fill("7")
    page.locator(".nbtrain-FormView .nbf-verdict", has_text="problem").wait_for()
    everything = page.locator(".nbtrain-FormView .nbf-all")
    if not everything.evaluate("node => node.open"):
        everything.locator("> summary").click()
    # With sections that are on and off.
    everything.get_by_role("tab", name="Model").click()
    everything.locator(".nbf-field[data-key='lora'] input").check()
    page.locator(".nbtrain-FormView .nbf-verdict", has_text="2 problems").wait_for()
    everything.locator(".nbf-field[data-key='lora']").scroll_into_view_if_needed()


def board(page: Any, lab: Lab) -> None:
    alone(page)
    host(page, f"openTensorBoard('{LIVE}')")
    frame = page.frame_locator(".nbtrain-TensorBoard iframe").frame_locator("iframe[title=TensorBoard]")
    frame.locator("card-view").first.wait_for()
    frame.locator("card-view svg").first.wait_for()


def models(page: Any, lab: Lab) -> None:
    """Show the page of models, which is empty because the recorded runs have no checkpoint."""
    alone(page)
    page.evaluate("() => void window.jupyterapp.commands.execute('nbtrain:models')")
    page.frame_locator("iframe[src*=nbtrain-models]").get_by_text("No run has a checkpoint yet.").wait_for()


CELLS = {
    "job": ('nb.open_run("gpt-done")', ".nbtrain-panel .nbt-step"),
    "failed": ('nb.open_run("gpt-failed")', ".nbtrain-panel .nbt-failure"),
    "runs": ("nb.runs()", ".nbtrain-runs tr.nbt-run"),
    "compare": ('nb.compare(["gpt-done", "gpt-stopped"])', ".nbtrain-compare polyline"),
    "plan": ('nb.plan("gpt-1-3b-4xdp-4xpp")', "table"),
    "check": ('nb.check("gpt-13b-4xdp-4xpp")', "li"),
    "data-card": ('nb.data_card("card")', "pre"),
    "form": ('nb.launcher("gpt-tiny", "batch.max_steps=400", "full")', ".nbtrain-form .nbf-found p"),
    "what-if": ('nb.what_if("gpt-1-3b-4xdp-4xpp")', ".nbtrain-what-if .w-bar"),
}


def notebook(key: str) -> Callable[[Any, Lab], None]:
    """Return a function that shows a notebook with one cell of CELLS and its output."""

    def show(page: Any, lab: Lab) -> None:
        line, sign = CELLS[key]
        write_notebook(lab, f"{key}.ipynb", f"import nbtrain as nb\n\n{line}")
        page.evaluate("() => window.jupyterapp && (window.onbeforeunload = null)")
        open_notebook(page, lab, f"{key}.ipynb")
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        run_cell(page, 0)
        page.locator(f".jp-OutputArea-output {sign}").first.wait_for()

    return show


RUN = (".nbtrain-RunView",)
OUTPUT = (".jp-OutputArea-output > *",)
STATIONS = (
    Station("launcher", launcher, (".jp-LauncherCard[data-category=nbtrain]", ".nbtrain-Status")),
    # The buttons above the list are JupyterLab's own elements.
    Station("sidebar", sidebar, (".nbtrain-Sidebar .nbtrain-View", ".nbtrain-Status")),
    Station("runs", runs, ("#nbtrain-runs .nbtrain-RunsView",)),
    Station("live-overview", run_tab(LIVE, "Overview", ".nbt-charts polyline"), RUN),
    Station("failed-overview", run_tab("gpt-failed", "Overview", ".nbt-failure"), RUN),
    Station("overview", run_tab("gpt-done", "Overview", "table[aria-label=events] td"), RUN),
    Station("replicas", run_tab("gpt-done", "Replicas", "table[aria-label=ranks] td"), RUN),
    Station("logs", run_tab("gpt-done", "Logs", "pre:has-text('step   300')"), RUN),
    Station("failed-logs", run_tab("gpt-failed", "Logs", ".nbt-traceback pre"), RUN),
    Station("resources", run_tab("gpt-done", "Resources", ".nbt-usage polyline"), RUN),
    Station("metrics", run_tab("gpt-done", "Metrics", ".nbt-usage polyline"), RUN),
    Station("plan", run_tab("gpt-done", "Plan", ".nbt-tile"), RUN),
    Station("config", run_tab("gpt-done", "Config", ".nbt-config-tree th:has-text('num_layers')"), RUN),
    Station("compare", compare, (".nbtrain-CompareView",)),
    Station("form", form, (".nbtrain-FormView",)),
    Station("form-problems", form_problems, (".nbtrain-FormView",)),
    # The frame contains TensorBoard's own page.
    Station("tensorboard", board, ()),
    Station("models", models, ()),
    *(Station(f"notebook-{key}", notebook(key), OUTPUT, ".jp-OutputArea") for key in CELLS),
)
