"""The page of a run in a browser, without a server or kernel: tabs, keyboard, buttons and charts."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from nbtrain.base.errors import JobError
from nbtrain.base.files import write_json
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.run_actions import actions, off, run_shown
from nbtrain.lab.run_pages import config_page
from nbtrain.monitor.job.job_tables import rank_charts
from nbtrain.monitor.metrics.metric_charts import how_drawn, metric_charts
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.status.run_status import RunStatus
from tests.end_to_end.accessible import axe_script, findings
from tests.end_to_end.jupyterlab import stop_at_once
from tests.lab.ui.pages import answered, routes_of, run_until, view_page
from tests.lab.widgets.fake_run import FakeJob, measure

pytestmark = [pytest.mark.slow, pytest.mark.browser]
MOUNT = "ui.mount(root, {name: 'gpt-fake'})"
# With the attempt, the log is read once: the job's page, which arrives later, names the same log.
LOG_PLACE = "{tab: 'logs', rank: '0', attempt: 0}"
MOUNT_LOG = f"ui.mount(root, {{name: 'gpt-fake', place: {LOG_PLACE}}})"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FakeJob]:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=2)
    for _ in range(20):
        job.one_step()
    measure(job)
    yield job
    job.tensorboard.close()


def test_every_tab_shows_its_page_by_the_keyboard_alone(job: FakeJob, browser: Any) -> None:
    """The arrow keys move through all tabs; a tab whose data the server does not provide says so."""
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        page.locator(".nbt-pill", has_text="RUNNING").wait_for()
        page.get_by_role("tab", name="Overview").focus()
        expected = {
            "Replicas": "worker 0",
            "Logs": "step    20 |",
            "Resources": "Memory",
            "Metrics": "does not offer the curves",
            "Plan": "does not offer the plan",
            "Config": "does not offer the differences",
        }
        page.get_by_role("tabpanel").get_by_text("Rank0Trains").wait_for()
        for name, words in expected.items():
            page.keyboard.press("ArrowRight")
            assert page.evaluate("document.activeElement.textContent") == name
            page.get_by_role("tabpanel").get_by_text(words).first.wait_for()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name="Overview").get_attribute("aria-selected") == "true"


def test_every_menu_is_walked_by_the_keyboard_alone(job: FakeJob, browser: Any) -> None:
    """Enter opens a menu, Tab moves to its first control, and Escape closes it and returns to its button."""
    walk = "() => document.activeElement.closest('details') && document.activeElement.tagName"
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        page.locator(".nbt-charts polyline").first.wait_for()
        for tab, menus in (("Overview", 3), ("Replicas", 2)):
            page.get_by_role("tab", name=tab).click()
            summaries = page.get_by_role("tabpanel").locator(".nbt-menu > summary:visible")
            expect(summaries).to_have_count(menus)
            for at in range(menus):
                summaries.nth(at).focus()
                page.keyboard.press("Enter")
                page.keyboard.press("Tab")
                assert page.evaluate(walk) in ("BUTTON", "INPUT"), (tab, at)
                page.keyboard.press("Escape")
                assert page.evaluate(walk) == "SUMMARY" and not page.locator("details[open]").count()


def test_charts_are_read_zoomed_and_saved(job: FakeJob, browser: Any) -> None:
    """Charts have three axis labels, integer steps and a common pointer, and can be zoomed and saved as PNG
    and CSV.
    """
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        charts = page.locator(".nbt-charts .nbt-chart")
        charts.nth(2).locator("polyline").first.wait_for()
        for at in range(3):
            charts.nth(at).locator("text.nbt-y").nth(2).wait_for()
            steps = charts.nth(at).locator("text.nbt-x").all_text_contents()
            assert all(words.removeprefix("step ").isdigit() for words in steps) and len(steps) >= 2
        expect(charts.nth(0).locator(".nbt-raw")).to_have_count(1)
        svg = charts.nth(0).locator("> svg")
        svg.focus()
        page.keyboard.press("Home")
        assert charts.nth(0).locator(".nbt-tip b").inner_text().startswith("step 1 \u00b7 ")
        for at in (1, 2):
            assert charts.nth(at).locator(".nbt-read").text_content().startswith("step 1: ")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("+")
        assert charts.nth(2).locator(".nbt-read").text_content().startswith("step 2: ")
        box = svg.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 80)
        page.mouse.up()
        assert "step 1" not in charts.nth(1).locator("text.nbt-x").all_text_contents()
        svg.dblclick()
        charts.nth(0).locator("summary").click()
        with page.expect_download() as saved:
            charts.nth(0).get_by_text("Save as CSV").click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert (saved.value.suggested_filename, lines[0]) == (
            "gpt-fake-loss.csv",
            "step,training loss,validation loss",
        )
        assert len(lines) == 21
        charts.nth(0).locator("summary").click()
        with page.expect_download() as saved:
            charts.nth(0).get_by_text("Save as PNG").click()
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
        charts.nth(0).locator("summary").click()
        with page.expect_download() as saved:
            charts.nth(0).get_by_text("Save as SVG").click()
        drawn = ElementTree.parse(saved.value.path()).getroot()
        texts = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert {"training loss", "validation loss"} <= {*texts} and drawn.get("width")
        # The enlarged copy has its own smoothing and ends, and follows the run.
        charts.nth(0).get_by_role("button", name="Enlarge this chart").focus()
        page.keyboard.press("Enter")
        large = page.get_by_role("dialog")
        large.locator("polyline").first.wait_for()
        assert large.locator(".nbt-chart > svg").bounding_box()["width"] > 800
        expect(large.locator(".nbt-raw")).to_have_count(1)
        large.get_by_label("smoothing").fill("0")
        assert large.locator(".nbt-raw").count() == 0 and charts.nth(0).locator(".nbt-raw").count() == 1
        large.get_by_label("lowest").fill("-2")
        large.get_by_label("highest").fill("20")
        labels = large.locator("text.nbt-y").all_text_contents()
        assert "20" in labels and "20" not in charts.nth(0).locator("text.nbt-y").all_text_contents()
        large.get_by_label("highest").fill("high")
        assert large.get_by_label("highest").get_attribute("aria-invalid") == "true"
        points = len(large.locator("polyline").first.get_attribute("points").split())
        job.one_step()
        page.wait_for_function(
            """(many) => {
                const line = document.querySelector("dialog polyline");
                return line.getAttribute("points").split(" ").length > many;
            }""",
            arg=points,
        )
        page.keyboard.press("Escape")
        large.wait_for(state="detached")
        assert page.evaluate("document.activeElement.ariaLabel") == "Enlarge this chart"


PLANNED = {
    "headline": {"fits": "no, 9.1 GiB too much", "time": "3 d", "disk": "2.0 TiB"},
    "kind": "bad",
    "tables": [{"title": "Model", "heads": ["figure", "value"], "rows": [["parameters", "1.3B"]]}],
    "findings": [{"label": "error, cannot run", "message": "It does not fit.", "fix": "Set zero_stage: 3."}],
}


def test_the_plan_says_what_to_do(job: FakeJob, browser: Any) -> None:
    """The plan shows fit, time and disk space first, then findings with their fixes, then the tables."""
    routes = routes_of(job.run) | {"run/gpt-fake/plan": lambda query, body: PLANNED}
    with view_page(browser, routes, "ui.mount(root, {name: 'gpt-fake', place: {tab: 'plan'}})") as page:
        panel = page.get_by_role("tabpanel")
        panel.get_by_text("error, cannot run: It does not fit. Set zero_stage: 3.").wait_for()
        assert panel.locator(".nbt-kind-bad").inner_text() == "no, 9.1 GiB too much"
        expect(panel.locator("h4")).to_have_text(["Findings", "Model"])


def test_settings_are_searched_filtered_and_cloned_with_another_value(job: FakeJob, browser: Any) -> None:
    """A tree of sections; what differs from the defaults, from the parent and by overrides; a clone opens the
    form with the changed value, by the keyboard alone."""
    write_json(
        job.job.origins_json, {"lr_schedule.lr": "override lr_schedule.lr=1e-3", "model.seed": "gpt.yaml:3"}
    )
    value = config_page(job.run)
    for row in value["rows"]:
        if row["key"] == "lr_schedule.lr":
            row["parent"] = "5e-4"
    value["parent"] = "gpt-parent"
    routes = routes_of(job.run) | {"run/gpt-fake/config": lambda query, body: value}
    host = "window.nbtrainHost = {openForm: (start) => (window.opened = start)};"
    mount = f"(() => {{ {host} return ui.mount(root, {{name: 'gpt-fake', place: {{tab: 'config'}}}}); }})()"
    with view_page(browser, routes, mount) as page:
        tree, rows = page.locator(".nbt-config-tree"), page.locator(".nbt-config-tree tr:visible")
        tree.locator("summary", has_text="lr_schedule").wait_for()
        assert rows.locator("th", has_text="num_layers").count() == 1
        status = tree.get_by_role("status")
        assert status.inner_text() == f"{len(value['rows'])} settings"
        filters = tree.get_by_label("settings to show")
        assert filters.locator("option").all_inner_texts() == [
            "All settings",
            "Changed by overrides",
            "Set explicitly",
            "Different from the defaults",
            "Different from gpt-parent",
        ]
        found = {}
        for key in ("yaml", "set", "default", "parent"):
            filters.select_option(key)
            found[key] = rows.evaluate_all("(all) => all.map((row) => row.dataset.key)")
        assert (found["yaml"], found["set"]) == (["lr_schedule.lr"], ["model.seed", "lr_schedule.lr"])
        assert found["parent"] == ["lr_schedule.lr"] and "model.seed" not in found["default"]
        assert "gpt-parent 5e-4 \u00b7 set by override lr_schedule.lr=1e-3" in rows.inner_text()
        filters.select_option("all")
        tree.get_by_label("search settings").fill("model.hidden_size")
        assert status.inner_text() == f"1 of {len(value['rows'])} settings"
        change = tree.get_by_role("button", name="Clone this run with another value of model.hidden_size")
        change.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.value") == "192"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "Change"
        page.keyboard.press("Enter")
        page.keyboard.type("384")
        page.keyboard.press("Enter")
        assert page.evaluate("window.opened") == {"clone": "gpt-fake", "overrides": ["model.hidden_size=384"]}


def test_predictions_are_compared_with_measurements_and_the_model_is_offered(
    job: FakeJob, browser: Any
) -> None:
    """Tiles with the predicted and the measured step time and peak memory; the button that tries the model is
    off until a checkpoint is saved."""
    duration = {"tokens_per_second": 5000.0, "basis": "assumed 61 GFLOP/s on each of 2 cores"}
    write_json(
        job.run.plan_json,
        {"tokens_per_step": 1024, "duration": duration, "memory": {"total_bytes": 3 * 2**29}},
    )
    routes, saved = routes_of(job.run), {"memory_bytes": 2**30, "checkpoint_step": None}
    view = RunView(job.run)

    def answer(query: dict[str, str], body: Any) -> Any:
        beat = Heartbeat.read(job.job.heartbeat(0))
        replace(beat, progress=replace(beat.progress, **saved)).write(job.job.heartbeat(0))
        return run_shown(view)

    host = "window.nbtrainHost = {openModel: (name) => (window.opened = name)};"
    mount = f"(() => {{ {host} return {MOUNT}; }})()"
    with view_page(browser, {**routes, "run/gpt-fake": answer}, mount) as page:
        tile = page.locator(".nbt-tile", has_text="step time")
        tile.get_by_text("predicted 0.205 s, ratio 0.9").wait_for()
        assert re.match(r"0\.\d{3} s\b", tile.locator("strong").inner_text())
        memory = page.locator(".nbt-tile", has_text="peak memory")
        memory.get_by_text("predicted 1.5 GiB, ratio 0.67").wait_for()
        words = ["peak memory, rank 0", "1.0 GiB", "predicted 1.5 GiB, ratio 0.67"]
        assert memory.inner_text().split("\n") == words
        page.get_by_role("row", name="step time predicted from assumed 61 GFLOP/s").wait_for()
        button = page.get_by_role("button", name="Try the model")
        assert button.is_disabled()
        assert button.get_attribute("title") == "The run has not saved a checkpoint yet."
        saved["checkpoint_step"] = 20
        page.locator(".nbt-model:enabled").click()
        assert page.evaluate("window.opened") == "gpt-fake"


def test_one_point_is_a_dot(tmp_path: Path, browser: Any) -> None:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40)
    job.one_step()
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        page.locator(".nbt-charts .nbt-chart").nth(1).locator("circle").wait_for()
        assert page.locator(".nbt-charts polyline").count() == 0


def test_stop_shows_as_such_until_the_job_has_ended(job: FakeJob, browser: Any) -> None:
    """After Stop, the Undo button has the focus for five seconds; then the state is shown as Stopping...
    until the job has ended, or the stop has failed.
    """
    routes = routes_of(job.run)
    shown, failed = routes["run/gpt-fake"], {"failed_action": None}
    routes["run/gpt-fake"] = lambda query, body: shown(query, body) | failed
    routes["run/gpt-fake/stop"] = lambda query, body: {"state": "RUNNING", "cause": None, "name": "gpt-fake"}
    with view_page(browser, routes, MOUNT, still=True) as page:
        stop = page.get_by_role("button", name="Stop")
        run_until(page, stop)
        assert "60 s and are no longer saving are killed" in stop.get_attribute("title")
        stop.click()
        page.keyboard.press("Enter")
        assert (page.evaluate("document.activeElement.textContent"), page.asked) == ("Stop", [])
        stop.click()
        page.get_by_role("button", name="Do not wait").click()
        page.locator(".nbt-pill", has_text="Stopping...").wait_for()
        page.get_by_text("Stop requested: the ranks exit").wait_for()
        assert page.asked == [("POST", "run/gpt-fake/stop", {})]
        answered(page)
        message = "the job was asked to stop 180 s ago"
        failed["failed_action"] = {"action": "stop", "message": message, "at": 1.0}
        run_until(page, page.locator(".nbt-error", has_text=f"Stop failed: {message}"))
        expect(page.locator(".nbt-pill", has_text="Stopping...")).to_have_count(0)
        expect(page.get_by_role("button", name="Stop")).to_be_enabled()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Do not wait").click()
        page.get_by_text("Stop requested: the ranks exit").wait_for()
        failed["failed_action"] = None
        job.finish("CANCELLED", "stopped on request at step 20; saved")
        run_until(page, page.locator(".nbt-pill", has_text="CANCELLED"))
        assert page.locator("[aria-live=polite]").inner_text() == (
            "gpt-fake: CANCELLED. stopped on request at step 20; saved"
        )


def test_save_says_when_the_checkpoint_is_there(job: FakeJob, browser: Any) -> None:
    """Save requests a checkpoint, and the page says at which step it was saved; the buttons stay on."""
    routes, saved = routes_of(job.run), {"checkpoint_step": None}
    shown = routes["run/gpt-fake"]

    def answer(query: dict[str, str], body: Any) -> Any:
        value = shown(query, body)
        return {**value, "progress": {**value["progress"], **saved}}

    routes["run/gpt-fake"] = answer
    routes["run/gpt-fake/save"] = lambda query, body: {"state": "RUNNING", "cause": None, "name": "gpt-fake"}
    with view_page(browser, routes, MOUNT, still=True) as page:
        save = page.get_by_role("button", name="Save", exact=True)
        run_until(page, save)
        save.click()
        page.get_by_text("Save requested: the ranks save a checkpoint").wait_for()
        assert page.asked == [("POST", "run/gpt-fake/save", {})]
        answered(page)
        saved["checkpoint_step"] = 1200
        run_until(page, page.get_by_text("Saved at step 1,200."))
        expect(save).to_be_enabled()


STATES = (
    *(("RUNNING", None), ("RUNNING", "pause"), ("SUSPENDED", None), ("RUNNING", "stop"), ("QUEUED", None)),
    *(("CANCELLED", None), ("FAILED", None), ("SUCCEEDED", None)),
)


@pytest.mark.parametrize("width", [1000, 420])
def test_a_button_has_its_place_in_every_state(job: FakeJob, browser: Any, width: int) -> None:
    """Buttons keep their positions in every state: after Pause, the same position has Resume and never Stop.
    Kill and Delete share a position.
    """
    routes, states = routes_of(job.run), list(STATES)
    shown = run_shown(RunView(job.run))

    def answer(query: dict[str, str], body: Any) -> Any:
        state, asked = states[0]
        found = actions(job.run, state, asked)
        buttons = {"actions": found, "off": off(job.run, found, state, asked)}
        words = {
            "pill": list(RunStatus("", state, None, 1, 0.0, asked=asked).pill),
            "tone": "error" if state == "FAILED" else "",
        }
        return {**shown, **buttons, "state": state, "asked": asked, "shown": {**shown["shown"], **words}}

    read = """() => [...document.querySelectorAll("[data-slot]")].map((node) => {
        const { left, top, width } = node.getBoundingClientRect();
        return [node.dataset.slot, [left, top, width].join(), node.textContent, node.disabled];
    })"""
    with view_page(browser, {**routes, "run/gpt-fake": answer}, MOUNT, width, still=True) as page:
        page.clock.run_for(100)
        found = {}
        for state in STATES:
            states[:] = [state]
            page.clock.run_for(5100)
            answered(page)
            found[state] = page.evaluate(read)
        places = {state: [(slot, place) for slot, place, *_ in each] for state, each in found.items()}
        assert len(set(map(tuple, places.values()))) == 1, places
        assert [slot for slot, _ in places[STATES[0]]] == ["save", "pause", "tensorboard", "delete", "stop"]
        words = {state: [text for *_, text, is_off in each if not is_off] for state, each in found.items()}
        assert words == {
            ("RUNNING", None): ["Save", "Pause", "TensorBoard", "Stop"],
            ("RUNNING", "pause"): ["TensorBoard", "Kill"],
            ("SUSPENDED", None): ["Resume", "TensorBoard", "Stop"],
            ("RUNNING", "stop"): ["TensorBoard", "Kill"],
            ("QUEUED", None): ["Pause", "TensorBoard", "Stop"],
            ("CANCELLED", None): ["Resume", "TensorBoard", "Delete"],
            ("FAILED", None): ["Resume", "TensorBoard", "Delete"],
            ("SUCCEEDED", None): ["TensorBoard", "Delete"],
        }


def test_a_long_cause_leaves_the_page_in_reach(job: FakeJob, browser: Any) -> None:
    """A cause of 3,500 characters is cut to three lines, with a button that opens the rest, which scrolls."""
    job.finish("FAILED", "rank 1 failed: CUDA out of memory. " + 290 * "Tried more. ")
    with view_page(browser, routes_of(job.run), MOUNT, width=1024) as page:
        box = page.locator(".nbt-failure")
        more = box.get_by_role("button", name="more")
        more.wait_for()
        for height, most in ((450, 330), (700, 330)):
            page.set_viewport_size({"width": 1024, "height": height})
            # The text is measured in the frame after the one that has the new size.
            page.wait_for_function(
                "(most) => document.querySelector('[role=tablist]').getBoundingClientRect().y < most",
                arg=most,
            )
        assert box.get_by_role("button", name="Resume").is_visible()
        before = box.locator(".nbt-cause").bounding_box()["height"]
        more.focus()
        page.keyboard.press("Enter")
        text = box.locator(".nbt-cause .nbt-clamp")
        assert before < 110 and box.locator(".nbt-cause").bounding_box()["height"] > 2 * before
        assert text.evaluate("(node) => node.textContent.length") > 3400
        box.get_by_role("button", name="less").press("Enter")
        assert box.locator(".nbt-cause").bounding_box()["height"] == before


def test_nan_is_a_marked_gap_and_can_be_skipped(job: FakeJob, browser: Any) -> None:
    """A NaN loss interrupts the line and is marked, the tile says since which step, and a button resumes the
    run without the step.
    """
    for loss in (*[math.nan] * 3, 3.1, 3.0, 2.9, *[math.nan] * 2):
        job.step += 1
        job.scalars(loss=loss, learning_rate=1e-4)
    bad = {"step": 27, "positions": [208, 216], "bad": "nan", "ranks": [1]}
    job.events.write("error", "step 27: the loss is nan on rank 1 of 2; samples 208 to 215", **bad)
    job.finish("FAILED", "rank 1 failed: step 27: the loss is nan on rank 1 of 2")
    routes = routes_of(job.run)
    routes["run/gpt-fake/resume"] = lambda query, body: {"state": "QUEUED", "cause": None, "name": "gpt-fake"}
    with view_page(browser, routes, MOUNT) as page:
        loss = page.locator(".nbt-charts .nbt-chart").first
        loss.locator(".nbt-gap").nth(1).wait_for()
        assert loss.locator("polyline.nbt-raw").count() == 2 and loss.locator(".nbt-gap").count() == 2
        assert loss.locator(".nbt-gap title").all_text_contents() == [
            "training loss is NaN or Inf at step 21 to 23",
            "training loss is NaN or Inf at step 27 to 28",
        ]
        assert "training loss, NaN since step 27" in loss.locator(".nbt-legend").inner_text()
        tile = page.locator(".nbt-tile", has_text="training loss").first
        assert tile.inner_text().split("\n") == [
            "training loss",
            "NaN",
            "since step 27 (samples 208 to 215, rank 1)",
        ]
        page.get_by_role("button", name="Resume from the start and skip step 27").click()
        page.get_by_role("status").get_by_text("Resume requested.").wait_for()
        assert page.asked == [
            ("POST", "run/gpt-fake/resume", {"overrides": {"stability.on_nan": "skip"}}),
        ]


def test_a_job_that_waits_for_disk_space_says_how_long_still(job: FakeJob, browser: Any) -> None:
    job.record.state, job.record.cause = "RESTARTING", "rank 0 failed: the disk is full"
    job.record.write(job.job.job_json)
    job.supervisor_events.write("warning", "waits for room", needed_bytes=1 << 60, wait_seconds=600)
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        note = page.locator(".nbt-note", has_text="Waiting for disk space: 1048576.0 TiB is needed")
        note.wait_for()
        words = note.inner_text()
        assert "The job continues automatically once there is enough space." in words
        assert re.search(r"Otherwise the job fails in (9|10) min \d+ s\.", words)
        assert words.endswith("Cause: rank 0 failed: the disk is full")
    job.finish("CANCELLED", "only a test")


def test_curves_that_are_still_being_read_say_so_on_overview(job: FakeJob, browser: Any) -> None:
    routes, parts = routes_of(job.run), [0.404, 1.0]
    shown = routes["run/gpt-fake"]
    routes["run/gpt-fake"] = lambda query, body: {**shown(query, body), "reading": parts[0]}
    with view_page(browser, routes, MOUNT) as page:
        words = page.get_by_text("The curves are incomplete: 40 % of the metrics have been read.")
        words.wait_for()
        parts.pop(0)
        words.wait_for(state="hidden")


def test_the_logs_open_on_the_rank_that_failed(job: FakeJob, browser: Any) -> None:
    """The Logs tab opens with the rank that failed first, not with rank 0, which lost it and ended earlier. A
    log that the user selects stays selected.
    """
    job.job.log(1, 0).write_text("the words of rank 1\n")
    job.finish("FAILED", "rank 1 failed: boom", failed_rank=1)
    for rank, at, message in ((0, 10.0, "connection closed"), (1, 20.0, "boom")):
        ExitRecord(rank, 0, at, 1, None, "failed", 20, message).write(job.job.exit_record(rank, 0))
    with view_page(
        browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake', place: {tab: 'logs'}})"
    ) as page:
        page.locator("pre", has_text="the words of rank 1").wait_for()
        page.get_by_label("log to show").select_option(label="rank 0")
        page.locator("pre", has_text="step    20 |").wait_for()
        page.get_by_role("tab", name="Overview").click()
        page.get_by_role("tab", name="Logs").click()
        page.locator("pre", has_text="step    20 |").wait_for()


def test_a_job_that_waits_leaves_the_queue(job: FakeJob, browser: Any) -> None:
    """Stopping a waiting job removes it from the queue, with a text that does not mention saving; the text
    disappears when the job has ended.
    """
    job.record.state = "QUEUED"
    job.record.write(job.job.job_json)
    routes = routes_of(job.run)
    routes["run/gpt-fake/stop"] = lambda query, body: {"state": "QUEUED", "cause": None, "name": "gpt-fake"}
    with view_page(browser, routes, MOUNT, still=True) as page:
        stop = page.get_by_role("button", name="Stop")
        run_until(page, stop)
        stop.click()
        page.get_by_role("group", name="gpt-fake leaves the queue in 5 s.").wait_for()
        page.get_by_role("button", name="Do not wait").click()
        asked = page.get_by_role("status").get_by_text("Removal from the queue requested.")
        asked.wait_for()
        # The pill's dots end the sentence.
        heard = page.locator("[aria-live=polite]").inner_text()
        assert heard.startswith("gpt-fake: Stopping... ")
        answered(page)
        job.finish("CANCELLED", "left the queue on request")
        run_until(page, page.locator(".nbt-pill", has_text="CANCELLED"))
        assert asked.count() == 0


def test_after_a_click_no_button_of_the_old_state_is_on(job: FakeJob, browser: Any) -> None:
    """Between the answer to Resume and the next snapshot, neither Resume nor Delete can be clicked."""
    job.finish("FAILED", "rank 1 failed: boom")
    routes, view, asked = routes_of(job.run), RunView(job.run), []

    def answer(query: dict[str, str], body: Any) -> Any:
        if asked and len(asked) < 3:
            # The server is slow: this answer is older than the resume.
            asked.append("late")
            page.wait_for_timeout(200)
        shown = run_shown(view)
        if not asked:
            return shown
        buttons = actions(job.run, "STARTING")
        return {**shown, "state": "STARTING", "active": True, "actions": buttons, "off": {}}

    def resume(query: dict[str, str], body: Any) -> Any:
        asked.append("resume")
        return {"state": "STARTING", "cause": None, "name": "gpt-fake"}

    routes |= {"run/gpt-fake": answer, "run/gpt-fake/resume": resume}
    with view_page(browser, routes, MOUNT) as page:
        page.locator(".nbt-head .nbt-resume:enabled").wait_for()
        page.evaluate(
            """() => {
                window.stale = [];
                const panel = document.querySelector(".nbtrain-panel");
                const look = () => {
                    const on = document.querySelectorAll(".nbt-head :is(.nbt-resume, .nbt-delete):enabled");
                    if (window.clicked) window.stale.push(on.length);
                };
                const watched = { childList: true, subtree: true, attributes: true };
                new MutationObserver(look).observe(panel, watched);
                document.querySelector(".nbt-head .nbt-resume").click();
                window.clicked = true;
            }"""
        )
        page.locator(".nbtrain-panel[data-state=STARTING]").wait_for()
        page.get_by_role("button", name="Stop").wait_for()
        stale = page.evaluate("window.stale")
        assert stale and max(stale) == 0


def test_a_failure_is_a_box_and_deleting_asks(job: FakeJob, browser: Any) -> None:
    """A failure is shown in a box with the cause, advice, Resume and Copy. Delete asks for confirmation
    first.
    """
    job.finish("FAILED", "rank 1 failed: <b>boom</b>")
    routes = routes_of(job.run)
    routes["run/gpt-fake/resume"] = lambda query, body: {"state": "QUEUED", "cause": None, "name": "gpt-fake"}
    with view_page(browser, routes, MOUNT) as page:
        box = page.locator(".nbt-failure")
        box.get_by_text("rank 1 failed: <b>boom</b>").wait_for()
        box.get_by_text("No checkpoint was saved, so Resume starts again at step 0.").wait_for()
        page.get_by_role("button", name="Delete").click()
        asked = page.get_by_role("alertdialog")
        asked.get_by_text("This cannot be undone.").wait_for()
        walked = [page.evaluate("document.activeElement.textContent")]
        for key in ("Tab", "Shift+Tab"):
            page.keyboard.press(key)
            walked.append(page.evaluate("document.activeElement.textContent"))
        assert walked == ["Cancel", "Delete", "Cancel"]
        page.keyboard.press("Escape")
        assert (page.evaluate("document.activeElement.textContent"), page.asked) == ("Delete", [])
        page.evaluate(
            """() => {
                const status = document.querySelector(".nbt-top [role=status]");
                window.said = [];
                const heard = new MutationObserver(() => window.said.push(status.textContent));
                heard.observe(status, { childList: true });
            }"""
        )
        box.get_by_role("button", name="Resume").click()
        page.get_by_role("status").get_by_text("Resume requested.").wait_for()
        assert page.evaluate("window.said") == ["Resuming...", "Resume requested."]
        assert page.asked == [("POST", "run/gpt-fake/resume", {})]


def test_a_log_below_a_traceback_shows_its_newest_lines(job: FakeJob, browser: Any) -> None:
    """The log below a traceback is scrolled to its newest lines, also if the traceback loads later or the
    page becomes smaller.
    """
    lines = "".join(f"step {step:5} | loss 3.0\n" for step in range(1, 201))
    job.job.log(0, 0).write_text(lines)
    job.finish("FAILED", "rank 1 failed: boom")
    routes = routes_of(job.run)
    traceback = {"title": "The last traceback of rank 1", "text": "Traceback:\n" + 9 * "  a frame\n" + "boom"}

    def late(query: dict[str, str], body: Any) -> Any:
        page.wait_for_timeout(300)
        return traceback

    routes["run/gpt-fake/log/traceback"] = late
    with view_page(browser, routes, "ui.mount(root, {name: 'gpt-fake', place: {tab: 'logs'}})") as page:
        page.locator(".nbt-traceback pre", has_text="boom").wait_for()
        for height in (900, 500):
            page.set_viewport_size({"width": 1000, "height": height})
            page.wait_for_function(
                """() => {
                    const log = document.querySelector("pre[aria-label=log]");
                    return log.scrollTop > 0 && log.scrollHeight - log.scrollTop - log.clientHeight < 2;
                }"""
            )


def test_a_log_that_is_lower_in_the_frame_of_a_scroll_shows_its_newest_lines(
    job: FakeJob, browser: Any
) -> None:
    """A log whose height shrinks while it is scrolled still shows its newest lines, although the browser
    fires the scroll event before the resize event.
    """
    job.job.log(0, 0).write_text("".join(f"step {step:5} | loss 3.0\n" for step in range(1, 201)))
    with view_page(browser, routes_of(job.run), MOUNT_LOG) as page:
        page.locator("pre", has_text="step   200 |").wait_for()
        away = page.evaluate(
            """async () => {
                const log = document.querySelector("pre[aria-label=log]"), heard = [];
                const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                log.addEventListener("scroll", () => heard.push(log.clientHeight));
                const before = log.clientHeight;
                log.scrollTop -= 10;
                log.style.flex = "0 0 200px";
                await frame();
                await frame();
                if (heard[0] >= before) throw new Error(`no scroll in the lower log: ${before}, ${heard}`);
                return log.scrollHeight - log.scrollTop - log.clientHeight;
            }"""
        )
        assert away < 2


def test_a_log_has_numbers_levels_and_lines_to_choose(job: FakeJob, browser: Any) -> None:
    """Line numbers and levels continue while the log grows. A line can be selected by a click or its number,
    and linked to.
    """
    words = [
        "W1128 slow",
        "Traceback (most recent call last):",
        "  File x",
        "ValueError: boom",
        "DEBUG x",
        "ok",
    ]
    with job.job.log(0, 0).open("a") as stream:
        stream.write("\n".join(words) + "\n")
    host = "window.nbtrainHost = {linkTo: (names, place) => JSON.stringify([names, place])};"
    mount = f"(() => {{ {host} return {MOUNT_LOG}; }})()"
    with view_page(browser, routes_of(job.run), mount) as page:
        page.context.grant_permissions(["clipboard-read"])
        lines = page.locator(".nbt-line")
        page.locator("pre", has_text="DEBUG x").wait_for()
        # The end of the log is drawn before its beginning has been read.
        lines.nth(25).wait_for()
        kinds = lines.evaluate_all(
            "(all) => all.slice(19).map((node) => [node.dataset.line, node.className])"
        )
        levels = [kind.removeprefix("nbt-line").strip() for _, kind in kinds]
        assert levels == [
            "",
            "nbt-level-warning",
            *["nbt-level-error"] * 3,
            "nbt-level-debug",
            "",
        ]
        assert [number for number, _ in kinds] == [str(number) for number in range(20, 27)]
        job.one_step()
        page.locator("pre", has_text="step    21 |").wait_for()
        expect(lines).to_have_count(27)
        assert lines.last.get_attribute("data-line") == "27"
        link = page.get_by_role("button", name="Copy link")
        assert link.is_disabled()
        lines.nth(4).click()
        assert page.get_by_label("go to line").input_value() == "5"
        page.get_by_label("go to line").fill("23")
        page.keyboard.press("Enter")
        expect(page.locator(".nbt-current")).to_have_text(re.compile(r"^  File x\n?$"))
        link.focus()
        page.evaluate("document.execCommand = () => { window.copied = document.activeElement.value; }")
        page.keyboard.press("Enter")
        place = {"tab": "logs", "job": job.job.job_id, "rank": "0", "attempt": 0, "line": 23}
        page.wait_for_function("window.copied")
        assert json.loads(page.evaluate("window.copied")) == [["gpt-fake"], place]


def test_a_link_to_a_line_opens_the_log_of_its_job_there(job: FakeJob, browser: Any) -> None:
    """A link to a line opens its log at this line, also for an older job and a rank other than the one that
    the tab opens with.
    """
    old, log = job.job.job_id, job.job.log(1, 0)
    log.write_text("".join(f"line {number} of rank 1\n" for number in range(1, 90_001)))
    job.finish("CANCELLED", "stopped on request at step 20; saved")
    new = FakeJob(job.run, steps=40, world_size=2, start=20)
    new.one_step()
    place = f"{{tab: 'logs', job: '{old}', rank: '1', attempt: 0, line: 45000}}"
    with view_page(
        browser, routes_of(job.run), f"ui.mount(root, {{name: 'gpt-fake', place: {place}}})"
    ) as page:
        chosen = page.locator(".nbt-current", has_text="line 45000 of rank 1")
        chosen.wait_for()
        expect(chosen).to_have_attribute("data-line", "45,000")
        expect(page.locator(".nbt-line")).to_have_count(5000)
        page.wait_for_function(
            """() => {
                const log = document.querySelector("pre[aria-label=log]").getBoundingClientRect();
                const line = document.querySelector(".nbt-current").getBoundingClientRect();
                return line.top > log.top && line.bottom < log.bottom;
            }"""
        )
        page.get_by_label("follow").check()
        page.locator("pre", has_text="line 90000 of rank 1").wait_for()
        expect(page.locator(".nbt-line").last).to_have_attribute("data-line", "90,000")
    new.finish("CANCELLED", "only a test")


def test_hits_of_a_search_are_marked_and_walked(job: FakeJob, browser: Any) -> None:
    """All matches of a search are marked, and Enter moves from hit to hit: among equal lines, after bytes
    that are not UTF-8, and in another log. An invalid pattern is explained at the field.
    """
    lines = [*[b"nan"] * 300, b"\xff\xfe", b" 50%|##  |\r100%|####|", b"the loss is \x1b[31mNaN\x1b[0m"]
    job.job.log(0, 0).write_bytes(b"\n".join(lines) + b"\n")
    job.job.log(1, 0).write_text("loss inf\n")
    with view_page(browser, routes_of(job.run), MOUNT_LOG) as page:
        page.locator("pre", has_text="the loss is NaN").wait_for()
        field, current = page.get_by_label("search all logs"), page.locator("pre .nbt-current")
        page.get_by_label("regex").check()
        field.fill("(loss")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("'(loss' is not a regular expression").wait_for()
        assert field.get_attribute("aria-invalid") == "true" and page.locator(".nbt-hit").count() == 0
        field.fill("loss (is .*)?(nan|inf)|50%")
        assert field.get_attribute("aria-invalid") is None
        page.keyboard.press("Enter")
        page.get_by_text('3 lines with "loss').wait_for()
        marks = ["50%", "loss is NaN", "loss inf"]
        expect(page.locator(".nbt-hit mark")).to_have_text(marks)
        # The bar was redrawn, so its line is shown without the match.
        walked = (("302", "100%|####|", 0), ("303", "the loss is NaN", 1), ("1", "loss inf", 1))
        for key in ("Enter", "Shift+Enter"):
            for number, text, count in walked if key == "Enter" else walked[1::-1]:
                page.keyboard.press(key)
                current.get_by_text(text).wait_for()
                page.locator(f'pre .nbt-current[data-line="{number}"]').wait_for()
                expect(current.locator("mark")).to_have_count(count)
        page.get_by_label("regex").uncheck()
        field.fill("nan")
        page.keyboard.press("Enter")
        page.locator(".nbt-hit").nth(150).click()
        page.locator('pre .nbt-current[data-line="151"]').wait_for()
        expect(page.locator("pre mark")).to_have_count(200)
        expect(page.locator(".nbt-hits .nbt-tools .nbt-place")).to_have_text("151 of 200")
        words = page.locator(".nbt-hits .nbt-tools").inner_text()
        assert words.split("\n")[0] == 'The first 200 lines with "nan"'
        assert findings(page, axe_script(), ["#root"]) == []


def test_a_table_that_is_drawn_anew_leaves_the_focus_in_its_place(browser: Any) -> None:
    """When new values redraw a table, the focus stays where it was: on a row's button, a column heading or a
    paging arrow.
    """
    code = """() => {
        const act = ({ cells: [textContent] }) =>
            [Object.assign(document.createElement("button"), { textContent })];
        const table = new ui.DataTable("ranks", { act, pageSize: 2 });
        const show = (memory) =>
            table.show(["rank"], ["a", "b", "c"].map((name) => ({ cells: [name, memory] })));
        root.append(table.node);
        show("1 GiB");
        return ["b", "rank", "\u203a"].map((words, at) => {
            [...root.querySelectorAll("button")].find((node) => node.textContent === words).focus();
            const before = document.activeElement;
            show(`${at + 2} GiB`);
            return [before.isConnected, document.activeElement.textContent];
        });
    }"""
    with view_page(browser, {}, f"({code})()", module="elements/table") as page:
        assert page.evaluate("window.end") == [[False, "b"], [False, "rank"], [False, "\u203a"]]


def test_a_copy_button_keeps_the_focus_when_the_basic_info_changes(job: FakeJob, browser: Any) -> None:
    with view_page(browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake'})") as page:
        basics = page.get_by_role("table", name="basic info")
        basics.locator("tr", has_text="RUNNING").wait_for()
        copy = page.get_by_role("button", name="Copy notebook code")
        copy.focus()
        job.finish("CANCELLED", "only a test")
        basics.locator("tr", has_text="CANCELLED").wait_for()
        assert copy.evaluate("(node) => node === document.activeElement")


def test_a_pods_output_is_shown_until_the_rank_has_a_log(job: FakeJob, browser: Any) -> None:
    """Each read replaces the output of a pod, until the rank has written its log."""
    routes, output = routes_of(job.run), ["pulling", "starting"]
    log = routes["run/gpt-fake/log"]

    def answer(query: dict[str, str], body: Any) -> Any:
        if not output:
            return log(query, body) | {"whole": False}
        assert "offset" not in query
        text = "".join(f"{line}\n" for line in output)
        return dict(text=text, start_bytes=0, end_bytes=0, size_bytes=0, first_line=None, whole=True)

    routes["run/gpt-fake/log"] = answer
    mount = "ui.mount(root, {name: 'gpt-fake', place: {tab: 'logs'}})"
    with view_page(browser, routes, mount) as page:
        shown = page.locator("pre[aria-label=log] .nbt-line")
        expect(shown).to_have_text(["pulling", "starting"])
        expect(page.locator(".nbt-logs .nbt-empty")).to_have_text(
            "Rank 0 has not written a log yet. This is the output of its pod."
        )
        output.append("no module named nbtrain")
        expect(shown).to_have_text(["pulling", "starting", "no module named nbtrain"])
        output.clear()
        expect(shown.first).to_contain_text("step")
        expect(page.locator(".nbt-logs .nbt-empty")).to_be_hidden()


def test_a_rank_without_a_log_says_so(job: FakeJob, browser: Any) -> None:
    job.job.log(1, 0).write_text("")
    with view_page(
        browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake', place: {tab: 'logs'}})"
    ) as page:
        page.locator("pre", has_text="step    20 |").wait_for()
        page.get_by_label("log to show").select_option(label="rank 1")
        page.get_by_text("Rank 1 has not logged anything yet (Running, training).").wait_for()


def test_a_replicas_menu_opens_its_log(job: FakeJob, browser: Any) -> None:
    """In the table of replicas, the user can choose the columns, and one click opens a rank's log."""
    job.job.supervisor_log.write_text("the supervisor's words\n")
    with view_page(
        browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake', place: {tab: 'replicas'}})"
    ) as page:
        table = page.locator("table[aria-label=replicas]")
        table.get_by_text("5.0 GiB of 8.0 GiB").wait_for()
        assert "image" not in table.locator("th").all_inner_texts()
        page.locator("summary", has_text="Columns").first.click()
        page.get_by_label("image").first.check()
        assert "image" in table.locator("th").all_inner_texts()
        page.keyboard.press("Escape")
        table.get_by_text("Logs").click()
        table.get_by_role("button", name="supervisor").click()
        page.locator("pre", has_text="the supervisor's words").wait_for()


def test_a_cell_of_the_strip_leads_to_its_ranks_log_curves_and_message(browser: Any, tmp_path: Path) -> None:
    """64 cells are one tab stop; the arrow keys move between them, and Enter opens a rank."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=8)
    job.world_size = job.record.world_size = 64
    job.record.write(job.job.job_json)
    write_json(job.job.control_launch, {"ranks": [8] * 8})
    job.one_step()
    measure(job, node=4, ranks=tuple(range(32, 40)))
    slow = Heartbeat.read(job.job.heartbeat(37))
    replace(slow, compute_seconds=0.31).write(job.job.heartbeat(37))
    job.job.log(37, 0).write_text("the log of rank 37\n")
    ExitRecord(37, 0, 10.0, 1, None, "failed", 1, "CUDA out of memory").write(job.job.exit_record(37, 0))
    routes = routes_of(job.run)
    routes["run/gpt-fake/job/rank"] = lambda query, _: {
        "rank": int(query["rank"]),
        "charts": rank_charts(job.run, None, int(query["rank"])),
    }
    mount = "ui.mount(root, {name: 'gpt-fake', place: {tab: 'replicas'}})"
    with view_page(browser, routes, mount) as page:
        cells = page.get_by_role("group", name="ranks").get_by_role("button")
        cells.nth(63).wait_for()
        assert page.locator(".nbt-strip-summary").inner_text() == "63 Running, 1 Error"
        assert (cells.nth(36).inner_text(), cells.nth(37).inner_text()) == ("36", "!")
        boxes = cells.evaluate_all("(all) => all.map((node) => node.getBoundingClientRect().height)")
        assert min(boxes) >= 24
        page.get_by_label("color the cells by").select_option("seconds")
        assert page.locator(".nbt-strip-summary").inner_text() == "0.310 s"
        page.get_by_label("color the cells by").focus()
        page.keyboard.press("Tab")
        below = "() => Number(document.activeElement.dataset.rank)"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(below) > 8
        page.keyboard.press("ArrowUp")
        assert page.evaluate(below) == 0
        page.keyboard.press("End")
        assert page.evaluate(below) == 63
        for _ in range(26):
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        detail = page.get_by_role("region", name="the chosen rank")
        detail.locator("polyline").nth(1).wait_for()
        assert "exit code 1: CUDA out of memory" in detail.inner_text()
        assert page.evaluate(below) == 37
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator("pre", has_text="the log of rank 37").wait_for()
    job.finish("CANCELLED", "only a test")


def curves(asked: list[dict[str, str]]) -> Any:
    """Return a metrics route with two curves of 20 steps that records its requests."""

    def answer(query: dict[str, str], _: Any) -> Any:
        asked.append(query)
        steps = [*range(1, 21)]
        part = {"step": steps, "time": [1000.0 + at for at in steps], "tokens": [1024 * at for at in steps]}
        names = ("loss", "grad_norm")
        words = [(name, {"title": name.replace("_", " "), "unit": ""}) for name in names]
        tags = [{"tag": name, **said, **how_drawn(name, "")} for name, said in words]
        series = {name: {**part, "value": [9.0 - at / 4 for at in steps]} for name in names}
        mark = {"step": 10, "time": 1010.0, "kind": "restart", "words": "restart at step 10"}
        charts = metric_charts(tags)
        return {"tags": tags, "charts": charts, "series": series, "marks": [mark], "reading": 1}

    return answer


def test_metrics_by_step_tokens_and_time(job: FakeJob, browser: Any) -> None:
    """All charts have the same x axis (step, tokens or time), zooming requests the points of the range, and
    restarts are marked.
    """
    asked: list[dict[str, str]] = []
    routes = routes_of(job.run) | {"run/gpt-fake/metrics": curves(asked)}
    with view_page(browser, routes, "ui.mount(root, {name: 'gpt-fake', place: {tab: 'metrics'}})") as page:
        charts = page.locator(".nbt-usage .nbt-chart")
        charts.nth(1).locator("polyline").first.wait_for()
        expect(charts.locator(".nbt-mark.nbt-restart")).to_have_count(2)
        axis = page.get_by_label("axis of the charts")
        for chosen, last in (("tokens", "tokens 20k"), ("time", "time 15 s"), ("step", "step 20")):
            axis.select_option(chosen)
            charts.nth(0).locator("text.nbt-axis", has_text=last).wait_for()
        page.get_by_role("checkbox", name="log axis").check()
        page.get_by_label("filter curves").fill("norm")
        expect(charts).to_have_count(1)
        charts.locator("> svg").focus()
        page.keyboard.press("Home")
        with page.expect_request(lambda request: "from=" in request.url):
            page.keyboard.press("+")
        page.get_by_role("button", name="Reset zoom").click()


def test_the_job_that_is_shown_follows_a_resume(job: FakeJob, browser: Any) -> None:
    """After a resume, the job selector and the log switch to the new job. A job that the user selected stays
    selected, and is marked as older on every tab.
    """
    old = job.job.job_id
    job.finish("CANCELLED", "stopped on request at step 20; saved")
    with view_page(
        browser, routes_of(job.run), "ui.mount(root, {name: 'gpt-fake', place: {tab: 'logs'}})"
    ) as page:
        page.locator("pre", has_text="step    20 |").wait_for()
        choice = page.get_by_label("job to show")
        new = FakeJob(job.run, steps=40, world_size=2, start=20)
        new.one_step()
        assert new.job.job_id > old
        page.locator("pre", has_text="step    21 |").wait_for()
        expect(page.locator("pre")).not_to_contain_text("step    20 |")
        # The log and the pages of the new job are two requests.
        page.wait_for_function(
            "(job) => document.querySelector('[aria-label=\"job to show\"]').value === job",
            arg=new.job.job_id,
        )
        older = page.locator(".nbt-older")
        expect(older).to_have_text("")
        choice.select_option(old)
        page.locator("pre", has_text="step    20 |").wait_for()
        expect(older).to_have_text(re.compile(rf"^Job {old} is an older job of this run\."))
        page.get_by_role("tab", name="Metrics").click()
        older.get_by_role("button", name="Show the newest job").click()
        page.get_by_role("tab", name="Logs").click()
        page.locator("pre", has_text="step    21 |").wait_for()
        expect(choice).to_have_value(new.job.job_id)
        expect(older).to_have_text("")
        new.finish("CANCELLED", "only a test")


MODEL = """(() => {
    const state = {name: 'gpt-fake', run_id: '', snap: SNAP}, on = {};
    window.sent = [];
    const model = {
        get: (key) => state[key], set: (key, value) => (state[key] = value), save_changes() {}, off() {},
        on: (name, act) => (on[name] = act), send: (message) => window.sent.push(message),
    };
    document.getElementById('jupyter-config-data').remove();
    return ui.default.render({model, el: root});
})()"""


def test_the_server_is_asked_even_before_its_first_answer(job: FakeJob, browser: Any) -> None:
    """If the user clicks Stop before the server's first response, the request goes to the server, not to the
    kernel, which may be busy.
    """
    stopped: list[Any] = []
    routes = routes_of(job.run) | {"run/gpt-fake/stop": lambda query, body: stopped.append(body) or {}}
    mount = MODEL.replace("SNAP", json.dumps(run_shown(RunView(job.run))))
    mount = mount.replace("document.getElementById('jupyter-config-data').remove();", "")
    now = "[...root.querySelectorAll('.nbt-asked button')].at(-1).click()"
    clicked = (
        f"(() => {{ const end = {mount}; root.querySelector('.nbt-stop').click(); {now}; return end; }})()"
    )
    with view_page(browser, routes, clicked) as page:
        page.get_by_text("Stop requested: the ranks exit").wait_for()
        assert stopped == [{}]
        assert {"kind": "stop"} not in page.evaluate("window.sent")


def test_a_panel_that_is_drawn_anew_says_nothing_old(job: FakeJob, browser: Any) -> None:
    """When a notebook draws a panel again, as on scrolling, it shows current data, although the widget still
    contains its first snapshot.
    """
    old = run_shown(RunView(job.run))
    mount = MODEL.replace("SNAP", json.dumps(old)).replace("run_id: ''", f"run_id: '{old['run_id']}'")
    mount = mount.replace("document.getElementById('jupyter-config-data').remove();", "")
    with view_page(browser, routes_of(job.run), f"(window.drawn = () => {mount})()") as page:
        page.locator(".nbt-pill", has_text="RUNNING").wait_for()
        job.finish("CANCELLED", "stopped on request at step 20; saved")
        page.locator(".nbt-pill", has_text="CANCELLED").wait_for()
        anew = "window.end(); root.replaceChildren(); window.end = window.drawn();"
        read = "return root.querySelector('.nbt-top').innerText"
        words = page.evaluate(f"() => {{ const root = document.getElementById('root'); {anew} {read}; }}")
        assert words.startswith("CANCELLED") and "stopped on request at step 20; saved" in words


def test_without_a_server_the_kernels_figures_are_shown(job: FakeJob, browser: Any) -> None:
    """Without a server, the page shows the kernel's data, each tab says what it needs, and the only button is
    Stop, which the kernel handles.
    """
    snapshot = json.dumps(run_shown(RunView(job.run)))
    with view_page(browser, {}, MODEL.replace("SNAP", snapshot)) as page:
        page.get_by_text("This page cannot reach a Jupyter server").wait_for()
        page.locator(".nbt-charts polyline").first.wait_for()
        page.get_by_role("tab", name="Logs").click()
        page.locator("pre", has_text="step    20 |").wait_for()
        page.get_by_text("To see the whole log, run: nbtrain logs gpt-fake").wait_for()
        page.get_by_role("tab", name="Plan").click()
        page.get_by_text("Showing the plan needs nbtrain's server extension").wait_for()
        page.get_by_role("tab", name="Metrics").click()
        page.locator(".nbt-usage polyline").first.wait_for()
        expect(page.locator(".nbt-head .nbt-actions button")).to_have_text(["Stop"])
        page.get_by_role("button", name="Stop").click()
        page.evaluate("window.end()")
        page.wait_for_function("window.sent.length")
        assert {"kind": "stop"} in page.evaluate("window.sent")


def of_a_notebook(run: RunDir, run_id: str, before: str = "") -> str:
    """Return JavaScript that runs `before` and mounts a panel of a notebook, with a widget model and a
    server.
    """
    mount = MODEL.replace("SNAP", json.dumps(run_shown(RunView(run)))).replace(
        "run_id: ''", f"run_id: '{run_id}'"
    )
    return f"{before}{mount}".replace("document.getElementById('jupyter-config-data').remove();", "")


@pytest.mark.parametrize(("of_kernel", "left"), [(False, []), (True, ["Stop"])])
def test_a_server_that_has_gone_takes_its_buttons_along(
    job: FakeJob, browser: Any, of_kernel: bool, left: list[str]
) -> None:
    """If the server stops responding, its buttons disappear, except Stop if a kernel can handle it."""
    gone: list[bool] = []
    mount = of_a_notebook(job.run, job.record.run_id) if of_kernel else MOUNT
    with view_page(browser, routes_of(job.run), mount) as page:
        page.route("**/nbtrain/run/gpt-fake?*", lambda route: route.abort() if gone else route.fallback())
        buttons = page.locator(".nbt-head .nbt-actions button")
        # Before the server's first answer a kernel's panel has the buttons that need no server.
        expect(buttons).to_have_text(["Save", "Pause", "TensorBoard", "Delete", "Stop"])
        gone.append(True)
        page.get_by_text("The Jupyter server does not respond (Failed to fetch)").wait_for()
        expect(buttons).to_have_text(["TensorBoard", *left])
        if of_kernel:
            stop_at_once(page)
            page.get_by_text("Stop requested: the kernel stops the job").wait_for()


def test_what_a_server_that_has_gone_was_asked_is_not_called_done(job: FakeJob, browser: Any) -> None:
    """A request that the user confirms after the server has stopped responding is not reported as done."""
    job.finish("FAILED", "rank 1 failed: boom")
    gone: list[bool] = []
    mount = of_a_notebook(job.run, job.record.run_id)
    with view_page(browser, routes_of(job.run), mount, still=True) as page:
        page.route("**/nbtrain/run/gpt-fake?*", lambda route: route.abort() if gone else route.fallback())
        page.clock.run_for(100)
        page.get_by_role("button", name="Delete").click()
        gone.append(True)
        page.clock.run_for(6000)
        page.get_by_text("The Jupyter server does not respond").wait_for()
        page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
        page.get_by_text(
            "Delete failed: the Jupyter server does not respond; nothing was changed."
        ).wait_for()
        assert page.asked == [] and "delete" not in [one["kind"] for one in page.evaluate("window.sent")]


def test_a_run_of_another_output_folder_is_not_mistaken_for_the_servers(job: FakeJob, browser: Any) -> None:
    """A run in another output directory has no Clone and no TensorBoard, which would use the server's run
    with the same name.
    """
    opened = "{openForm: () => (window.opened = 1), openTensorBoard: () => (window.opened = 2)}"
    mount = of_a_notebook(job.run, "another", f"window.nbtrainHost = {opened}, ")
    clicks = "['clone', 'tensorboard'].forEach((key) => root.querySelector(`.nbt-${key}`).click())"
    mount = f"(() => {{ const end = ({mount}); {clicks}; return end; }})()"
    with view_page(browser, routes_of(job.run), mount) as page:
        page.get_by_text("This Jupyter server uses another output directory").wait_for()
        expect(page.locator(".nbt-head .nbt-actions button")).to_have_text(["Stop"])
        assert page.evaluate("window.opened") is None


def test_a_run_that_cannot_be_read_says_why(browser: Any) -> None:
    """The page of a damaged run shows the server's message, and not that the server is silent."""

    def torn(query: dict[str, str], body: Any) -> Any:
        raise JobError("output/torn/run.json:1: not JSON: Unterminated string (column 2)")

    with view_page(browser, {"run/torn": torn}, "ui.mount(root, {name: 'torn'})") as page:
        page.get_by_text("output/torn/run.json:1: not JSON: Unterminated string (column 2)").wait_for()
        assert page.get_by_text("does not respond").count() == 0


def test_a_run_that_was_deleted_elsewhere_is_called_so(job: FakeJob, browser: Any) -> None:
    """A run that was deleted elsewhere keeps its last values, but loses its buttons. A kernel's run that the
    server never had is not shown as deleted.
    """
    job.finish("SUCCEEDED", "done")
    words, known = {"message": "there is no run 'gpt-fake' under output.", "kind": "no_run"}, [True]

    def answer(route: Any) -> None:
        if known[0]:
            route.fallback()
        else:
            route.fulfill(status=404, json=words)

    with view_page(browser, routes_of(job.run), MOUNT, still=True) as page:
        page.route("**/nbtrain/run/gpt-fake?*", answer)
        delete = page.get_by_role("button", name="Delete")
        run_until(page, delete)
        known[0] = False
        run_until(
            page,
            page.get_by_text("The run gpt-fake no longer exists: it was deleted, renamed or moved."),
        )
        assert page.locator(".nbt-head .nbt-actions button").count() == 0
        assert page.locator(".nbt-charts polyline").count() > 0
        known[0] = True
        run_until(page, delete)
    known[0] = False
    mount = MODEL.replace("SNAP", json.dumps(run_shown(RunView(job.run))))
    mount = mount.replace("document.getElementById('jupyter-config-data').remove();", "")
    with view_page(browser, {}, mount) as page:
        page.route("**/nbtrain/run/gpt-fake?*", answer)
        page.get_by_text(
            "This Jupyter server has no run with this name, so the values come from the kernel."
        ).wait_for()


def test_a_run_made_anew_under_its_name_is_another(job: FakeJob, browser: Any) -> None:
    """A run that was deleted and created again under its name is shown as a new run, and not as a run in
    another output directory.
    """
    routes, ids = routes_of(job.run), [job.record.run_id]
    shown = routes["run/gpt-fake"]
    routes["run/gpt-fake"] = lambda query, body: {**shown(query, body), "run_id": ids[-1]}
    with view_page(browser, routes, f"ui.mount(root, {{name: 'gpt-fake', runId: '{ids[0]}'}})") as page:
        page.get_by_role("button", name="Stop").wait_for()
        ids.append("another")
        page.get_by_text("The run gpt-fake was deleted, and a new run has its name.").wait_for()
        expect(page.locator(".nbt-head .nbt-actions button")).to_have_count(0)


def test_events_are_filtered_by_their_object(job: FakeJob, browser: Any) -> None:
    """Events can be filtered by object (job, rank or machine) in addition to kind and text."""
    with view_page(browser, routes_of(job.run), MOUNT) as page:
        events = page.locator("table[aria-label=events]")
        events.locator("td").first.wait_for()
        # A column of times names the reader's time zone.
        since = page.locator("table[aria-label=conditions] th").first.inner_text()
        assert re.fullmatch(r"since, (UTC|GMT.*|[A-Z]+)", since)
        every = events.locator("tbody tr").count()
        choice = page.get_by_label("show events by object")
        names = choice.locator("option").all_inner_texts()
        assert names[0] == "All objects" and len(names) > 2
        column = events.locator("th").all_inner_texts().index("object")
        choice.select_option(label=names[1])
        found = [row.locator("td").nth(column).inner_text() for row in events.locator("tbody tr").all()]
        assert set(found) == {names[1]} and 0 < len(found) < every


def test_an_ended_run_whose_curves_are_half_read_is_asked_for_again_soon(job: FakeJob, browser: Any) -> None:
    """If the curves of a finished run are not completely read yet, the page requests them again after one
    second, otherwise after five.
    """
    job.finish("SUCCEEDED", "all tokens are done and saved")
    view, looks = RunView(job.run), []

    def half(query: dict[str, str], body: Any) -> Any:
        looks.append(query)
        return {**run_shown(view), "half_read": len(looks) < 3}

    def seconds_to_look(page: Any) -> float:
        before = len(looks)
        for tenth in range(1, 100):
            page.clock.run_for(100)
            answered(page)
            if len(looks) > before:
                return tenth / 10
        raise AssertionError("no request was sent")

    routes = {**routes_of(job.run), "run/gpt-fake": half}
    with view_page(browser, routes, MOUNT, still=True) as page:
        seconds_to_look(page)
        assert [seconds_to_look(page) < 3, seconds_to_look(page) < 3] == [True, True]
        assert seconds_to_look(page) >= 4.9
