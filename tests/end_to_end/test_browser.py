"""JupyterLab in a real browser: the panel, the form, TensorBoard and the data card.

jupyterlab.py lists the environment variables that choose the browser and keep pictures.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

import pytest
from playwright.sync_api import expect

from nbtrain.config.schema import RunConfig
from nbtrain.lab.widgets.record import records_in
from tests.dataset.dataset_maker import make_dataset
from tests.end_to_end.jupyterlab import (
    BUSY_SECONDS,
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
    shown_step,
    wait_for_kernel,
    write_notebook,
)
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def test_panel_is_live_while_a_cell_runs_and_after_a_reload_and_stops_the_job(lab: Lab, page: Any) -> None:
    """A panel's step advances while the kernel is busy, before and after a reload; then Stop works.

    The job pages are also available in a new kernel.
    """
    write_notebook(
        lab,
        "panel.ipynb",
        'import nbtrain as nb\n\nrun = nb.open_run("gpt-browser")\nrun',
        f"import time\n\ntime.sleep({BUSY_SECONDS})",
    )
    with fake_job(lab, "gpt-browser", "--steps", "4000") as job:
        open_notebook(page, lab, "panel.ipynb")
        run_cell(page, 0)
        page.wait_for_selector(".nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert page.locator(".nbtrain-panel").count() == 1
        wait_for_kernel(page)
        # Encrypted, as with `nbtrain lab`: the connection file contains a key.
        [connection] = (lab.root / "runtime").glob("kernel-*.json")
        assert json.loads(connection.read_text())["curve_publickey"]

        run_cell(page, 1)
        wait_until(lambda: kernel_busy(lab), "the sleeping cell did not start")
        assert_step_advances(page)
        assert kernel_busy(lab)
        screenshot(page, "panel-busy")

        command(page, "docmanager:save")
        wait_until(lambda: "nbtrain-rescue" in saved(lab, "panel.ipynb"), "the notebook was not saved")
        page.reload()
        page.wait_for_selector(".nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert_step_advances(page)
        assert kernel_busy(lab)
        screenshot(page, "panel-reloaded-busy")

        assert job.poll() is None
        page.locator(".nbtrain-panel .nbt-stop").first.click()
        page.wait_for_selector(".nbtrain-panel[data-state=CANCELLED]")
        assert job.wait(PATIENCE_SECONDS) == 0
        assert kernel_busy(lab)
        screenshot(page, "panel-stopped")

        # Without its kernel JupyterLab has no model of the widget, but the panel is restored.
        lab.restart_kernels()
        page.reload()
        page.wait_for_selector(".nbtrain-panel[data-state=CANCELLED] .nbt-step")
        assert page.locator("text=Error displaying widget").locator("visible=true").count() == 0

        # The run's recorded CPU and memory with their limits, in a kernel that never saw the run.
        tabs = page.locator(".nbtrain-panel .nbt-tabs")
        tabs.get_by_text("Resources", exact=True).click()
        charts = page.locator(".nbtrain-panel .nbt-usage .nbt-chart")
        charts.get_by_text("Memory", exact=True).wait_for()
        expect(charts).to_have_count(5)
        charts.locator("polyline").nth(6).wait_for(state="attached")
        expect(charts.nth(1).locator(".nbt-bound.nbt-limit")).to_have_count(1)
        screenshot(page, "panel-resources")
        tabs.get_by_text("Overview", exact=True).click()
        page.locator(".nbtrain-panel tr", has_text="StoppedOnRequest").first.wait_for()
        screenshot(page, "panel-overview")
        tabs.get_by_text("Logs", exact=True).click()
        page.locator(".nbtrain-panel select[aria-label='log to show']").select_option(label="rank 0")
        page.locator(".nbtrain-panel pre", has_text="step     1 |").wait_for()

        # The panel handles its keys: an arrow chooses an entry instead of moving to another cell.
        tabs.get_by_text("Metrics", exact=True).click()
        axis = page.locator(".nbtrain-panel select[aria-label='axis of the charts']")
        axis.press("ArrowDown")
        assert axis.input_value() == "tokens"
        cells = page.locator(".jp-Notebook .jp-Cell").all()
        assert ["jp-mod-active" in cell.get_attribute("class") for cell in cells] == [True, False]


# gpt-tiny on random words, small enough for 50 steps a second, and long enough to be watched.
WATCHED = (
    "name=watched model.num_layers=1 model.hidden_size=32 model.seq_length=32 batch.micro_batch_size=4 "
    "batch.global_batch_size=4 batch.train_tokens=25600000 evaluation.eval_iters=0 "
    "checkpoint.save_interval_steps=100000 "
    "tokenizer.name=mock tokenizer.vocab_size=512 data.name=mock 'data.sources=[{kind: mock}]'"
)


@pytest.mark.soak
def test_the_launch_notebook_trains_a_run_that_is_watched_and_stopped(lab: Lab, page: Any) -> None:
    """In 03_launch, the job's panel advances while the cell waits and after a
    reload; Stop saves a checkpoint.
    """
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    prepare = [sys.executable, "-m", "nbtrain.cli", "prepare", "gpt-tiny", *shlex.split(WATCHED)]
    subprocess.run(prepare, env=lab.environment, check=True, capture_output=True)
    notebook = load_notebook_node(str(REPOSITORY / "notebooks" / "03_launch.ipynb"))
    notebook = parameterize_notebook(notebook, {"overrides": WATCHED, "wait": "yes"})
    nbformat.write(notebook, lab.root / "notebooks" / "03_launch.ipynb")

    open_notebook(page, lab, "03_launch.ipynb")
    command(page, "notebook:run-all-cells")
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    wait_until(lambda: shown_step(page) > 0, "no step was made")
    assert kernel_busy(lab), "the waiting cell should be running"
    assert_step_advances(page)
    screenshot(page, "launch-notebook")
    command(page, "docmanager:save")
    wait_until(lambda: "nbtrain-rescue" in saved(lab, "03_launch.ipynb"), "the notebook was not saved")
    [record] = records_in(nbformat.reads(saved(lab, "03_launch.ipynb"), 4))
    assert (record["run"], record["parameters"]["overrides"]) == ("watched", WATCHED)
    # The path leads out of the kernel's workspace.
    file = shlex.quote(str(lab.root / "notebooks" / "03_launch.ipynb"))
    assert record["again"] == f"nbtrain notebook --again {file}"
    page.reload()
    # The form is above it, and a panel out of sight sends no requests.
    page.locator(".nbf-kernel", has_text="is busy with a cell").wait_for()
    page.locator(".nbtrain-panel").first.scroll_into_view_if_needed()
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    assert_step_advances(page)
    assert kernel_busy(lab)
    page.locator(".nbtrain-panel .nbt-stop").first.click()
    page.locator(".nbtrain-panel[data-state=CANCELLED]").first.wait_for()
    wait_until(lambda: not kernel_busy(lab), "the notebook still waits for a job that is stopped")
    assert list((lab.output / "watched" / "model").glob("global_step*/manifest.json"))
    # TensorBoard reads every run in the output directory: this run's steps would hide the next test's.
    shutil.rmtree(lab.output / "watched")


@pytest.mark.soak
def test_tensorboard_shows_new_points_by_itself(lab: Lab, page: Any) -> None:
    """The launcher's tile opens a live TensorBoard, and nb.tensorboard shows a run's
    TensorBoard in the notebook.
    """
    write_notebook(lab, "board.ipynb", 'import nbtrain as nb\n\nnb.tensorboard("gpt-board")')
    with fake_job(lab, "gpt-board", "--steps", "4000"):
        open_notebook(page, lab, "board.ipynb")
        command(page, "launcher:create")
        tile = page.locator(".jp-LauncherCard", has_text="TensorBoard")
        tile.wait_for()
        assert tile.count() == 1
        screenshot(page, "launcher-tile")
        tile.click()
        board = page.frame_locator(".nbtrain-TensorBoard iframe").frame_locator("iframe[title=TensorBoard]")
        assert_points_advance(board)
        screenshot(page, "tensorboard-tile")

        command(page, "application:close")
        page.locator(".nbtrain-TensorBoard").wait_for(state="detached")
        run_cell(page, 0)
        board = page.frame_locator("iframe.nbtrain-tensorboard").frame_locator("iframe[title=TensorBoard]")
        assert_points_advance(board)
        screenshot(page, "tensorboard-notebook")


def last_step(board: Any) -> int:
    """Return the step of the newest point, from the table in the first card."""
    text = board.locator("card-view").first.inner_text()
    found = re.search(r"([\d,]+)\s+Run\s", text)
    return int(found[1].replace(",", "")) if found else 0


def assert_points_advance(board: Any) -> None:
    """Assert that TensorBoard reloads by itself and shows later points."""
    board.locator("card-view").first.wait_for()
    step = wait_until(lambda: last_step(board), "TensorBoard shows no step")
    wait_until(lambda: last_step(board) > step, lambda: f"stays at step {step}")


CARD = {
    "name": "card",
    "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 16},
    "tokenizer": {"name": "card", "vocab_size": 300},
    "data": {"name": "card", "sources": [{"kind": "mock"}]},
    "batch": {"micro_batch_size": 1, "global_batch_size": 1, "train_tokens": 16},
    "lr_schedule": {"lr": 1e-3},
}


def test_documents_are_leafed_through(lab: Lab, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data card shows its first document; the arrow, a document number and a search text show others."""
    monkeypatch.setenv("NBTRAIN_DATA", lab.environment["NBTRAIN_DATA"])
    texts = [f"question {number}: what? answer: text {number}." for number in range(40)]
    make_dataset(RunConfig.model_validate(CARD), texts, learnt_from=[5] * 40)
    write_notebook(lab, "card.ipynb", 'import nbtrain as nb\n\nnb.data_card("card")')
    open_notebook(page, lab, "card.ipynb")
    run_cell(page, 0)
    shown = page.locator(".jp-OutputArea pre").last
    shown.get_by_text("text 0.").wait_for()
    screenshot(page, "data-card")
    page.locator("button[title='next document']").click()
    shown.get_by_text("text 1.").wait_for()
    number = page.locator(".widget-text input[type=number]").first
    number.fill("17")
    number.press("Enter")
    shown.get_by_text("text 17.").wait_for()
    find = page.get_by_placeholder("text in a document")
    find.fill("QUESTION 33")
    find.press("Enter")
    shown.get_by_text("text 33.").wait_for()
    page.get_by_text("in document 33").wait_for()
    screenshot(page, "data-card-found")
    find.fill("QUESTION 1")
    for found in (1, 10):
        page.get_by_role("button", name="next", exact=True).last.click()
        shown.get_by_text(f"text {found}.").wait_for()
        page.get_by_text(f"found in document {found}", exact=True).wait_for()


FOUR_NETWORKS = ["25 Gb/s", "100 Gb/s", "400 Gb/s", "3,200 Gb/s"]


def test_the_what_if_page_snaps_and_writes(lab: Lab, page: Any) -> None:
    """A slider and a choice redraw the what-if page with legal layouts only, and another network changes the
    wait; the button writes the run YAML.
    """
    write_notebook(lab, "what-if.ipynb", 'import nbtrain as nb\n\nnb.what_if("gpt-1-3b-4xdp-4xpp")')
    open_notebook(page, lab, "what-if.ipynb")
    run_cell(page, 0)
    shown = page.locator(".nbtrain-what-if")
    shown.locator("text=gpt-1-3b-4xdp-4xpp on 16 x A100-40GB").wait_for()
    expect(shown.locator(".w-words span")).to_have_text(["fits", "time", "disk"])
    expect(shown.locator(".w-bar", has_text="stage")).to_have_count(4)
    screenshot(page, "what-if")

    # The pipeline's slider, one step to the left: two stages, and twice the replicas.
    slider = shown.locator("input[data-control=pipeline]")
    slider.focus()
    slider.press("ArrowLeft")
    page.locator(".nbtrain-what-if[data-layout^='PP 2 x DP 8,']").wait_for()
    shown.locator("text=also changed: DP 4 -> 8").wait_for()
    shown.locator("select[data-control=zero]").select_option("3 (moves others)")
    page.locator(".nbtrain-what-if[data-layout^='DP 16, ZeRO 3']").wait_for()
    expect(shown.locator(".w-bar", has_text="stage")).to_have_count(0)
    screenshot(page, "what-if-changed")

    # A run on two machines has the network as a choice, and the same step on four others.
    networks = shown.locator(".w-bar.w-wide")
    assert [row.split("\n")[0] for row in networks.all_inner_texts()] == FOUR_NETWORKS
    waits = shown.locator("tr", has_text="waiting for network")
    before = waits.inner_text()
    shown.locator("select[data-control=network]").select_option("ethernet-25")
    shown.locator("tr", has_text="ethernet-25: 25 Gb/s, one way, of which 80% is reached").wait_for()
    assert waits.inner_text() != before
    assert all("waiting; hpZ saves" in row for row in networks.all_inner_texts())
    assert page.locator(".nbtrain-what-if[data-layout^='DP 16, ZeRO 3']").count() == 1
    screenshot(page, "what-if-network")

    shown.locator("input[type=text]").fill(str(lab.root / "chosen.yaml"))
    shown.locator("button", has_text="Use this").click()
    shown.locator(".w-answer.w-good", has_text="Written: ").wait_for()
    text = (lab.root / "chosen.yaml").read_text()
    assert "extends: gpt-1-3b-4xdp-4xpp\n" in text and "zero_stage: 3" in text
