"""The launch form in a real browser: values are checked at their fields, reach the next cell, and are kept.

jupyterlab.py lists the environment variables that choose the browser and keep pictures.
"""

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.end_to_end.jupyterlab import (
    BUSY_SECONDS,
    Lab,
    command,
    kernel_busy,
    open_notebook,
    run_cell,
    saved,
    screenshot,
    stop_at_once,
    wait_for_kernel,
    write_notebook,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser]

OPENED = 'import nbtrain as nb\n\nform = nb.launcher("gpt-tiny", "batch.max_steps=400", "full")\nform'
NEXT = 'config = form.config\nprint("HELD", config.batch.max_steps, config.batch.micro_batch_size, form.mode)'
# A cell that runs until the test releases it.
BUSY = 'import pathlib, time\n\nwhile not pathlib.Path("go").exists():\n    time.sleep(0.05)'


class FormPage:
    """The launch form as a user reads it."""

    def __init__(self, page: Any):
        self.page = page
        self.node = page.locator(".nbtrain-form").first

    def shows(self, part: str, words: str) -> None:
        self.node.locator(part, has_text=words).first.wait_for()

    def field(self, key: str) -> Any:
        return self.node.locator(f".nbf-field[data-key='{key}']").locator("visible=true").first

    def type(self, key: str, text: str) -> None:
        self.field(key).locator("input,textarea").first.fill(text)

    def button(self, words: str) -> Any:
        return self.node.get_by_role("button", name=words, exact=True)

    @property
    def line(self) -> str:
        return self.node.locator(".nbf-line").inner_text()

    @property
    def height(self) -> float:
        return self.node.bounding_box()["height"]


def test_a_form_teaches_and_what_it_holds_is_the_next_cells(lab: Lab, page: Any) -> None:
    """The form's help, problems, Reset, YAMLs and mode work, and the next cell gets the form's values.

    The values are kept after a new kernel and after a reload.
    """
    write_notebook(lab, "form.ipynb", OPENED, NEXT, BUSY)
    open_notebook(page, lab, "form.ipynb")
    run_cell(page, 0)
    form = FormPage(page)
    form.shows(".nbf-line", 'nb.submit("gpt-tiny", {"batch.max_steps": 400})')
    form.shows(".nbf-kernel", "The notebook's next cell gets these values")
    expect(form.node.locator("[aria-label='Essential fields'] .nbf-field")).to_have_count(12)
    screenshot(page, "form")

    # Labels next to a field, and its tooltip.
    lr = form.field("lr_schedule.lr")
    assert "Peak learning rate." in lr.inner_text() and "no default" in lr.inner_text()
    lr.locator("input").hover()
    assert hovered(page, lr.locator("input")).startswith("lr_schedule.lr: Peak learning rate.")
    batch = form.field("batch.global_batch_size")
    assert "sequences" in batch.inner_text()

    # Fields follow the architecture.
    form.node.locator(".nbf-all > summary").click()
    form.node.get_by_role("tab", name=re.compile("^Model")).click()
    form.field("model.architecture").locator("select").select_option("gpt3")
    form.shows("[data-key='model.norm_epsilon'] .nbf-meta", "default: 1.0e-05")
    expect(form.node.locator("[data-key='model.norm_epsilon'] input")).to_have_value("1.0e-05")
    form.shows(".nbf-line", '"model.architecture": "gpt3"')
    form.field("model.architecture").locator("select").select_option("qwen3")
    form.shows("[data-key='model.norm_epsilon'] .nbf-meta", "default: 1.0e-06")
    form.node.locator(".nbf-all > summary").click()

    # All problems at once, each at its field and counted on its tab, without moving the layout.
    height = form.height
    form.type("batch.micro_batch_size", "5")
    form.type("lr_schedule.lr", "fast")
    form.shows(".nbf-verdict", "2 problems in 2 fields")
    rule = "Must be a multiple of micro_batch_size(5) * data_parallel_size(1) = 5; nearest: 5, 10."
    expect(batch.locator(".nbf-help")).to_have_text(rule)
    expect(batch.locator("input")).to_have_attribute("aria-invalid", "true")
    expect(lr.locator(".nbf-help")).to_have_text("Must be a number.")
    assert form.node.locator(".nbf-found").inner_text().count("must be a multiple".capitalize()) == 1
    expect(form.button("Submit")).to_be_disabled()
    assert form.height == height
    tab = form.node.get_by_role("tab", name=re.compile("^Training"))
    form.node.locator(".nbf-all > summary").click()
    tab.click()
    expect(tab.locator(".nbf-count")).to_have_text(["2 problems", "3 changed fields"])
    screenshot(page, "form-problems")
    form.node.get_by_role("searchbox", name="search all fields").fill("zero++")
    form.shows(".nbf-all .nbf-label", "zero_hpz")
    form.node.locator(".nbf-all > summary").click()

    # The next cell gets the form's values.
    form.type("lr_schedule.lr", "0.002")
    form.type("batch.micro_batch_size", "4")
    form.shows(".nbf-line", 'nb.submit("gpt-tiny", {"batch.max_steps": 400, "batch.micro_batch_size": 4})')
    form.node.get_by_label("mode of the notebook").select_option("twin")
    form.shows(".nbf-line", 'nb.twin("gpt-tiny"')
    expect(form.button("Submit")).to_be_enabled()
    run_cell(page, 1)
    page.locator(".jp-OutputArea-output pre", has_text="HELD 400 4 twin").wait_for()

    # Reset and another YAML keep the notebook's overrides, and say so.
    form.node.get_by_label("mode of the notebook").select_option("full")
    form.button("Reset").click()
    form.shows(".nbf-notice", "1 change undone. The notebook's overrides still apply: batch.max_steps = 400.")
    form.button("Undo").click()
    form.shows(".nbf-notice", "Changes restored.")
    form.shows(".nbf-line", "micro_batch_size")
    form.node.get_by_label("run YAML").select_option("gpt-125m")
    form.shows(".nbf-notice", "Opened gpt-125m with the notebook's overrides batch.max_steps = 400.")
    form.shows(".nbf-line", 'nb.submit("gpt-125m", {"batch.max_steps": 400})')
    form.button("Apply them here").click()
    form.shows(".nbf-line", '"batch.micro_batch_size": 4')

    # While a cell runs, the server checks; the kernel gets all changes before the next cell.
    run_cell(page, 2)
    wait_until(lambda: kernel_busy(lab), "the waiting cell did not start")
    for steps in ("75", "76", "77"):
        form.type("batch.max_steps", steps)
        form.shows(".nbf-line", f'"batch.max_steps": {steps}')
    form.shows(".nbf-kernel", "it receives the last change when the cell finishes")
    assert kernel_busy(lab)
    run_cell(page, 1)
    (lab.root / "notebooks" / "go").touch()
    page.locator(".jp-OutputArea-output pre", has_text="HELD 77 4 full").wait_for()
    form.shows(".nbf-kernel", "The notebook's next cell gets these values")
    command(page, "docmanager:save")
    wait_until(lambda: "nbtrain-rescue" in saved(lab, "form.ipynb"), "the notebook was not saved")

    # Another kernel: the server still answers, and the form says that cells do not get its values. A page may
    # miss all messages of a restarted kernel, and then learns of it at the next edit.
    lab.restart_kernels()
    form.type("batch.max_steps", "78")
    form.shows(".nbf-kernel", "The kernel that created this form has ended")
    form.shows(".nbf-line", '"batch.max_steps": 78')
    expect(form.button("Submit")).to_be_enabled()
    page.reload()
    form = FormPage(page)
    form.shows(".nbf-line", 'nb.submit("gpt-125m", {"batch.max_steps": 78, "batch.micro_batch_size": 4})')
    form.shows(".nbf-kernel", "The kernel that created this form has ended")
    assert page.locator("text=Error displaying widget").locator("visible=true").count() == 0
    screenshot(page, "form-reloaded")

    # Running the form's cell again restores values that no kernel has received.
    wait_for_kernel(page)
    run_cell(page, 0)
    form.shows(".nbf-notice", "An earlier form of this run had 2 changes when its kernel ended.")
    form.button("Restore them").click()
    form.shows(".nbf-line", '"batch.max_steps": 78')
    form.shows(".nbf-kernel", "The notebook's next cell gets these values")
    run_cell(page, 1)
    page.locator(".jp-OutputArea-output pre", has_text="HELD 78 4 full").wait_for()


def hovered(page: Any, place: Any) -> str:
    """Move the pointer to the middle of an element, and return the title that is shown there."""
    box = place.bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    found = "([x, y]) => document.elementFromPoint(x, y).closest('[title]')?.title ?? ''"
    return page.evaluate(found, middle)


@pytest.mark.soak
def test_a_form_without_server_asks_its_kernel_and_without_both_says_so(lab: Lab, page: Any) -> None:
    """Without the server extension the kernel checks the form between cells; without
    both, Submit is disabled.
    """
    page.route("**/nbtrain/form*", lambda route: route.fulfill(status=404, json={"message": "Not Found"}))
    page.route("**/nbtrain/form/**", lambda route: route.fulfill(status=404, json={"message": "Not Found"}))
    page.route("**/nbtrain/submit*", lambda route: route.fulfill(status=404, json={"message": "Not Found"}))
    write_notebook(lab, "kernel.ipynb", OPENED, NEXT)
    open_notebook(page, lab, "kernel.ipynb")
    run_cell(page, 0)
    form = FormPage(page)
    form.shows(".nbf-notice", "missing or too old to serve forms. The kernel checks the form")
    form.type("batch.micro_batch_size", "5")
    form.shows(".nbf-verdict", "1 problem")
    form.type("batch.micro_batch_size", "4")
    form.shows(".nbf-line", '"batch.micro_batch_size": 4')
    expect(form.button("Submit")).to_be_enabled()
    run_cell(page, 1)
    page.locator(".jp-OutputArea-output pre", has_text="HELD 400 4 full").wait_for()

    lab.restart_kernels()
    form.type("batch.micro_batch_size", "2")
    form.shows(".nbf-kernel", "The kernel that created this form has ended")
    form.shows(".nbf-notice", "The form cannot be checked or submitted now")
    expect(form.button("Submit")).to_be_disabled()
    screenshot(page, "form-alone")
    page.unroute("**/nbtrain/form*")
    page.unroute("**/nbtrain/form/**")
    form.button("Try again").click()
    form.shows(".nbf-line", '"batch.micro_batch_size": 2')
    expect(form.button("Submit")).to_be_enabled()


# gpt-tiny on random words, small enough for 50 steps a second.
SUBMITTED = (
    "name=submitted model.num_layers=1 model.hidden_size=32 model.seq_length=32 batch.micro_batch_size=4 "
    "batch.global_batch_size=4 batch.train_tokens=25600000 evaluation.eval_iters=0 "
    "checkpoint.save_interval_steps=100000 "
    "tokenizer.name=mock tokenizer.vocab_size=512 data.name=mock 'data.sources=[{kind: mock}]'"
)


@pytest.mark.soak
def test_a_form_submits_while_a_cell_runs_and_without_its_kernel(lab: Lab, page: Any) -> None:
    """The form submits while a cell runs, its run appears below it and is stopped.

    After a reload the form also works without a kernel.
    """
    prepare = [sys.executable, "-m", "nbtrain.cli", "prepare", "gpt-tiny", *shlex.split(SUBMITTED)]
    subprocess.run(prepare, env=lab.environment, check=True, capture_output=True)
    opened = f'import nbtrain as nb\n\nform = nb.launcher("gpt-tiny", """{SUBMITTED}""")\nform'
    write_notebook(lab, "submit.ipynb", opened, f"import time\n\ntime.sleep({BUSY_SECONDS})")
    open_notebook(page, lab, "submit.ipynb")
    run_cell(page, 0)
    form = FormPage(page)
    form.shows(".nbf-verdict", "Can be submitted, with 1 warning")
    run_cell(page, 1)
    wait_until(lambda: kernel_busy(lab), "the sleeping cell did not start")
    form.type("lr_schedule.lr", "0.003")
    form.shows(".nbf-line", '"lr_schedule.lr": 0.003')
    form.button("Submit").click()
    form.shows(".nbf-answer", "The run is shown below the form.")
    # A panel out of sight sends no requests.
    page.locator(".nbtrain-panel").first.scroll_into_view_if_needed()
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    assert kernel_busy(lab)
    stop_at_once(page.locator(".nbtrain-panel").first)
    page.locator(".nbtrain-panel[data-state=CANCELLED]").first.wait_for()
    screenshot(page, "form-submitted")

    # Both the kernel and the page have been replaced since it was typed.
    command(page, "docmanager:save")
    wait_until(lambda: "nbtrain-rescue" in saved(lab, "submit.ipynb"), "the notebook was not saved")
    lab.restart_kernels()
    page.reload()
    form = FormPage(page)
    form.shows(".nbf-kernel", "The kernel that created this form has ended")
    form.shows(".nbf-line", '"lr_schedule.lr": 0.003')
    expect(form.field("lr_schedule.lr").locator("input")).to_have_value("0.003")
    form.button("Submit").click()
    form.shows(".nbf-answer", "Submitted: job")
    page.locator(".nbtrain-panel").first.scroll_into_view_if_needed()
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    assert len(list((lab.output / "submitted" / "jobs").iterdir())) == 2
    stop_at_once(page.locator(".nbtrain-panel").first)
    page.locator(".nbtrain-panel[data-state=CANCELLED]").first.wait_for()
