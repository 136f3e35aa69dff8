"""A user who has never seen nbtrain finds, without documentation: why a run failed, the better of two runs,
and how to train again with half the learning rate.

Only named buttons are used, from JupyterLab's launcher on, and every click is counted;
docs/evidence/ui-checklist.md has the numbers.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load.resolved_cache import kept_config
from tests.end_to_end.jupyterlab import Lab, screenshot
from tests.end_to_end.stations import OUT_OF_MEMORY
from tests.lab.widgets.fake_run import FakeJob

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

# Two real runs that differ in the learning rate: gpt-tiny on random words, a few seconds each.
SMALL = (
    "model.num_layers=1 model.hidden_size=32 model.seq_length=32 batch.micro_batch_size=4 "
    "batch.global_batch_size=4 batch.train_tokens=5120 lr_schedule.lr_warmup_tokens=640 "
    "evaluation.eval_iters=1 evaluation.eval_interval_steps=20 tokenizer.name=mock "
    "tokenizer.vocab_size=512 data.name=mock 'data.sources=[{kind: mock}]'"
)
RATES = {"gpt-fast": "0.004", "gpt-slow": "0.0004"}
# A key that presses a button is a click too, but not of the mouse.
COUNT = (
    "addEventListener('click', (event) => event.detail && (window.clicks = (window.clicks || 0) + 1), true)"
)


@pytest.fixture(scope="module")
def workspace(lab: Lab) -> Iterator[Lab]:
    """Record a run that failed, and train two that can be compared."""
    job = FakeJob(RunDir(lab.output / "gpt-large"), 400, world_size=2)
    for _ in range(120):
        job.one_step()
    job.finish("FAILED", OUT_OF_MEMORY)
    for name, rate in RATES.items():
        settings = [*shlex.split(SMALL), f"name={name}", f"lr_schedule.lr={rate}"]
        for verb, *more in (("prepare",), ("submit", "--wait")):
            command = [sys.executable, "-m", "nbtrain.cli", verb, "gpt-tiny", *settings, *more]
            done = subprocess.run(command, env=lab.environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    yield lab


@pytest.fixture
def visitor(workspace: Lab, page: Any) -> Any:
    """Open JupyterLab with its launcher, and count the clicks."""
    page.add_init_script(COUNT)
    page.goto(workspace.url("lab?reset"))
    page.locator(".jp-LauncherCard", has_text="Runs").click()
    page.locator(".nbtrain-RunsView tr[data-run=gpt-large]").wait_for()
    return page


def clicks(page: Any) -> int:
    return page.evaluate("() => window.clicks")


def test_why_a_run_failed_takes_one_click(visitor: Any) -> None:
    """The list shows the cause; the run's page has all of it, the advice and Resume."""
    row = visitor.locator(".nbtrain-RunsView tr[data-run=gpt-large]")
    row.get_by_text("CUDA out of memory. Tried to allocate 2.00 GiB").locator("visible=true").first.wait_for()
    assert clicks(visitor) == 1
    screenshot(visitor, "visit-list")
    row.get_by_role("button", name="gpt-large", exact=True).click()
    failure = visitor.locator(".nbtrain-RunView .nbt-failure")
    failure.get_by_text("which 1.02 GiB is free").wait_for()
    failure.get_by_role("button", name="Resume").first.wait_for()
    assert failure.locator(".nbt-advice").inner_text().strip()
    assert clicks(visitor) == 2
    screenshot(visitor, "visit-failed")


def test_the_better_of_two_runs_takes_three_clicks(visitor: Any) -> None:
    """The comparison has the results of all three runs. Without the run that failed, a star marks the better
    value of each result.
    """
    visitor.get_by_role("button", name="Compare all").click()
    compared = visitor.locator(".nbtrain-CompareView")
    results = compared.locator("table[aria-label='results of the runs']")
    results.locator("td").first.wait_for()
    assert clicks(visitor) == 2
    compared.get_by_role("button", name="Remove gpt-large from the comparison").click()
    results.locator("th", has_text="gpt-large").wait_for(state="detached")
    heads = results.locator("th").all_inner_texts()
    best = results.locator("tr", has_text="validation loss").first.locator("td, th")
    marked = best.evaluate_all("cells => cells.findIndex((cell) => cell.matches('.nbt-best'))")
    assert heads[marked] == "gpt-fast", heads
    assert clicks(visitor) == 3
    screenshot(visitor, "visit-compare")


def test_training_again_with_half_the_learning_rate_takes_three_clicks(visitor: Any, workspace: Lab) -> None:
    """The form of a clone has a free name and opens at the learning rate, whose value typing replaces."""
    visitor.get_by_role("button", name="Clone gpt-fast").click()
    form = visitor.locator(".nbtrain-FormView")
    form.locator(".nbf-field[data-key='lr_schedule.lr'] input:focus").wait_for()
    visitor.keyboard.type("0.002")
    form.get_by_text('"lr_schedule.lr": 0.002').wait_for()
    screenshot(visitor, "visit-clone")
    form.get_by_role("button", name="Submit", exact=True).click()
    visitor.locator(".nbtrain-RunView [data-run=gpt-fast-2][data-state=SUCCEEDED]").wait_for()
    assert clicks(visitor) == 3
    assert kept_config(RunDir(workspace.output / "gpt-fast-2").config_yaml).lr_schedule.lr == 0.002
    screenshot(visitor, "visit-again")
