"""nbtrain's labextension in a real browser without a kernel: sidebar, tabs, tiles and status."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from typing import Any

import openai
import pytest
from playwright.sync_api import expect

from nbtrain.base.run_directory.rundir import RunDir
from tests.end_to_end.accessible import axe_script, findings
from tests.end_to_end.jupyterlab import (
    BUSY_SECONDS,
    TOKEN,
    Lab,
    assert_step_advances,
    fake_job,
    kernel_busy,
    open_notebook,
    run_cell,
    screenshot,
    shown_step,
    stop_at_once,
    write_notebook,
)
from tests.end_to_end.stations import choose_theme
from tests.end_to_end.test_browser import WATCHED
from tests.inference import saved
from tests.lab.widgets.fake_run import FakeJob, measure
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SIDEBAR_TAB = '.jp-SideBar [data-id="nbtrain-sidebar"]'


def open_lab(page: Any, lab: Lab) -> None:
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    page.locator(SIDEBAR_TAB).click()


def wait_for_layout(lab: Lab, name: str) -> None:
    """Wait until JupyterLab has saved its layout, which it does some time after a change."""
    wait_until(
        lambda: name in json.dumps(lab.get("lab/api/workspaces/default")), lambda: "the layout was not saved"
    )


def test_the_sidebar_opens_a_run_that_comes_back_after_a_reload_and_stops_it(lab: Lab, page: Any) -> None:
    """The sidebar opens a run in a live tab, which is restored after a reload, and Stop works.

    nbtrain's tiles have a category of their own in the launcher.
    """
    with fake_job(lab, "gpt-sidebar", "--steps", "4000") as job:
        open_lab(page, lab)
        section = page.locator(".jp-Launcher-section", has=page.get_by_text("nbtrain", exact=True))
        # JupyterLab draws the sections one after another.
        section.locator(".jp-LauncherCard").nth(3).wait_for()
        tiles = ["New Run", "Runs", "TensorBoard", "Try a model"]
        expect(section.locator(".jp-LauncherCard")).to_have_text(tiles)
        expect(page.locator(".jp-LauncherCard", has_text="TensorBoard")).to_have_count(1)
        # Our section is first in the document too, so that Tab reaches it first.
        page.locator(".jp-Launcher .jp-LauncherCard").first.filter(has_text="New Run").wait_for()
        screenshot(page, "extension-launcher")

        page.locator(".nbtrain-Sidebar [data-run=gpt-sidebar] .nbt-open").click()
        page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
        assert_step_advances(page)
        screenshot(page, "extension-run")

        wait_for_layout(lab, "nbtrain-run-gpt-sidebar")
        page.reload()
        page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
        assert_step_advances(page)
        page.locator(".nbtrain-Status", has_text="nbtrain: 1 run").wait_for()

        # Jupyter's own panel of running things.
        page.locator('.jp-SideBar [data-id="jp-running-sessions"]').click()
        page.locator(".jp-RunningSessions-item", has_text=re.compile("gpt-sidebar.*RUNNING")).wait_for()
        screenshot(page, "extension-running")

        page.locator(SIDEBAR_TAB).click()
        page.get_by_role("button", name="Stop gpt-sidebar").click()
        assert job.wait(PATIENCE_SECONDS) == 0
        page.locator(".nbtrain-RunView [data-state=CANCELLED]").wait_for()
        page.get_by_text(re.compile("gpt-sidebar: CANCELLED")).first.wait_for()
        page.locator(".nbtrain-Status").wait_for(state="hidden")
        screenshot(page, "extension-stopped")


@pytest.mark.soak
def test_without_the_server_half_the_sidebar_says_so(lab: Lab, page: Any) -> None:
    """Without the server extension, the sidebar says so, and no dialog covers JupyterLab."""
    page.route("**/nbtrain/runs*", lambda route: route.fulfill(status=404, body="not found"))
    open_lab(page, lab)
    word = page.locator(".nbtrain-Sidebar [role=status]", has_text="lacks nbtrain's server extension")
    word.wait_for()
    assert "restart the server" in word.inner_text()
    assert page.locator(".jp-Dialog").count() == 0
    assert not page.locator(".nbtrain-Status").is_visible()
    screenshot(page, "extension-without-server")


@pytest.fixture(scope="module")
def ended(lab: Lab) -> str:
    """Create a finished run of two ranks with a log, events and measured resources."""
    job = FakeJob(RunDir(lab.output / "gpt-keys"), 60, world_size=2)
    measure(job)
    for _ in range(30):
        job.one_step()
    job.job.log(1, 0).write_text("rank 1 is ready\n")
    job.finish("CANCELLED", "stopped on request at step 30")
    return "gpt-keys"


def focused(page: Any) -> str:
    """Return the accessible name of the focused element, or its text."""
    return page.evaluate(
        """() => {
            const node = document.activeElement;
            return node.getAttribute("aria-label") || node.textContent || node.value || node.tagName;
        }"""
    ).strip()


def assert_ring(page: Any) -> None:
    """Assert that the focused element has a visible outline of at least one pixel."""
    style = page.evaluate(
        """() => {
            const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(document.activeElement);
            return [outlineStyle, parseFloat(outlineWidth), outlineColor];
        }"""
    )
    assert style[0] != "none" and style[1] >= 1 and style[2] != "rgba(0, 0, 0, 0)", (focused(page), style)


def press_until(page: Any, key: str, name: str, most: int = 60) -> None:
    """Press `key` until the element called `name` has the focus; each element on the
    way must show an outline.
    """
    seen = []
    for _ in range(most):
        page.keyboard.press(key)
        seen.append(focused(page))
        if seen[-1] == name:
            return assert_ring(page)
    pytest.fail(f"{name!r} is not reached with {key}: {seen}")


def test_a_run_is_opened_read_and_left_by_the_keyboard_alone(lab: Lab, page: Any, ended: str) -> None:
    """Everything can be done by keyboard: palette, list, tabs, sorting a column,
    closing a question, and the form.
    """
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    open_list(page)
    page.locator(f".nbtrain-Sidebar [data-run={ended}] .nbt-open").wait_for()
    press_until(page, "Tab", "show only runs that contain this text")
    page.keyboard.type(ended)
    press_until(page, "Tab", ended)

    # The list asks before deleting; Escape closes the question, and the focus returns.
    press_until(page, "Tab", f"Actions for {ended}")
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Delete...").wait_for()
    press_until(page, "ArrowUp", "Delete...")
    page.keyboard.press("Enter")
    question = page.locator(".nbtrain-Sidebar [role=alertdialog]")
    question.wait_for()
    assert focused(page) == "Cancel"
    page.keyboard.press("Escape")
    question.wait_for(state="detached")
    assert focused(page) == f"Actions for {ended}"
    press_until(page, "Shift+Tab", ended)
    page.keyboard.press("Enter")

    # Its tabs by the arrow keys, to a sorted column.
    run = page.locator(".nbtrain-RunView")
    run.locator("table[aria-label=conditions] td").first.wait_for()
    press_until(page, "Tab", "Overview")
    for name in ("Replicas", "Logs", "Resources", "Metrics", "Plan", "Config"):
        page.keyboard.press("ArrowRight")
        assert focused(page) == name
        assert_ring(page)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    run.locator("table[aria-label=ranks] td").first.wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.closest('table')?.ariaLabel") == "ranks":
            break
    assert focused(page) == "rank"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert run.locator("table[aria-label=ranks] th[aria-sort=descending]").inner_text() == "rank"
    assert run.locator("table[aria-label=ranks] tbody tr").first.locator("td").nth(1).inner_text() == "1"
    assert focused(page) == "rank"

    # The question of the run's own Delete button.
    press_until(page, "Shift+Tab", "Delete")
    page.keyboard.press("Enter")
    assert focused(page) == "Cancel"
    page.keyboard.press("Escape")
    assert focused(page) == "Delete"
    assert (lab.output / ended).is_dir()

    # A field of the form, and its text for screen readers.
    page.keyboard.press("Control+Shift+C")
    page.locator(".lm-CommandPalette-input").wait_for()
    page.keyboard.type("New Run...")
    page.locator(".lm-CommandPalette-item.lm-mod-active", has_text="New Run...").wait_for()
    page.keyboard.press("Enter")
    form = page.locator(".nbtrain-FormView")
    form.locator(".nbf-found p").first.wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if (
            page.evaluate("() => document.activeElement.closest('.nbf-field')?.dataset.key")
            == "lr_schedule.lr"
        ):
            break
    assert_ring(page)
    page.keyboard.press("Control+A")
    page.keyboard.type("fast")
    verdict = form.locator("[aria-live=polite]", has_text="1 problem")
    verdict.wait_for()
    expect(form.locator("[data-key='lr_schedule.lr'] .nbf-help").first).to_have_text("Must be a number.")

    # A link to a line of a log opens the run's tab there.
    place = {"tab": "logs", "rank": "1", "attempt": 0, "line": 1}
    page.goto(page.evaluate(f"() => window.nbtrainHost.linkTo(['{ended}'], {json.dumps(place)})"))
    page.locator(".nbtrain-RunView .nbt-current[data-line='1']", has_text="rank 1 is ready").wait_for()


NEW_RUN = """(start) => window.jupyterapp.commands.addKeyBinding({
    command: "nbtrain:new-run", args: start, keys: ["Accel Alt N"], selector: "body",
})"""


def open_list(page: Any) -> None:
    """Open the list of runs in the sidebar from JupyterLab's palette of commands."""
    page.keyboard.press("Control+Shift+C")
    page.locator(".lm-CommandPalette-input").wait_for()
    page.keyboard.type("Show nbtrain Runs")
    page.locator(".lm-CommandPalette-item.lm-mod-active", has_text="Show nbtrain Runs").wait_for()
    page.keyboard.press("Enter")
    page.locator(".nbtrain-Sidebar .nbt-run").first.wait_for()


@pytest.mark.soak
def test_the_whole_life_of_a_run_by_the_keyboard_alone(lab: Lab, page: Any, ended: str) -> None:
    """New run, submit, watch, pause, resume, stop and undo, stop, logs, compare and delete, of a real run.

    The end of another run while the page is closed is reported when it is opened again.
    """
    settings = [setting for setting in shlex.split(WATCHED) if not setting.startswith("name=")]
    settings.append("name=by-keys")
    command_line = [sys.executable, "-m", "nbtrain.cli", "prepare", "gpt-tiny", *settings]
    subprocess.run(command_line, env=lab.environment, check=True, capture_output=True)
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    page.evaluate(NEW_RUN, {"yaml": "gpt-tiny", "overrides": settings})
    page.keyboard.press("Control+Alt+N")
    form = page.locator(".nbtrain-FormView")
    form.locator(".nbf-found p").first.wait_for()
    form.get_by_role("button", name="Submit", exact=True).and_(page.locator(":enabled")).wait_for()
    press_until(page, "Tab", "Submit", most=400)
    page.keyboard.press("Enter")

    run = page.locator(".nbtrain-RunView")
    run.locator("[data-state=RUNNING] .nbt-step").wait_for()
    assert_step_advances(page)
    press_until(page, "Tab", "Pause", most=400)
    page.keyboard.press("Enter")
    run.locator("[data-state=SUSPENDED]").wait_for()
    # The focus stays in its place.
    wait_until(lambda: focused(page) == "Resume", lambda: focused(page))
    page.keyboard.press("Enter")
    run.locator("[data-state=RUNNING]").wait_for()
    assert_step_advances(page)
    wait_until(lambda: focused(page) == "Pause", lambda: focused(page))
    press_until(page, "Tab", "Stop")
    page.keyboard.press("Enter")
    assert focused(page) == "Undo"
    page.keyboard.press("Enter")
    assert focused(page) == "Stop"
    assert_step_advances(page)
    page.keyboard.press("Enter")
    press_until(page, "Tab", "Do not wait")
    page.keyboard.press("Enter")
    run.locator("[data-state=CANCELLED]").wait_for()

    # Its log: a search, and the line that was found.
    press_until(page, "Tab", "Overview", most=400)
    press_until(page, "ArrowRight", "Logs")
    press_until(page, "Tab", "search all logs")
    page.keyboard.type("tokens/s")
    page.keyboard.press("Enter")
    run.locator("pre mark").first.wait_for()

    # Compared with another run, which is hidden and shown again.
    open_list(page)
    press_until(page, "Tab", "Select by-keys", most=400)
    page.keyboard.press("Space")
    press_until(page, "Tab", f"Select {ended}")
    page.keyboard.press("Space")
    press_until(page, "Shift+Tab", "Compare")
    page.keyboard.press("Enter")
    compared = page.locator(".nbtrain-CompareView")
    compared.locator("table[aria-label='results of the runs'] td").first.wait_for()
    press_until(page, "Tab", f"Hide {ended}", most=400)
    page.keyboard.press("Enter")
    assert focused(page) == f"Show {ended}"
    expect(compared.locator("th", has_text=ended)).to_have_count(0)
    page.keyboard.press("Enter")
    compared.locator("th", has_text=ended).first.wait_for()

    # Deleted, after the question.
    open_list(page)
    press_until(page, "Tab", "by-keys", most=400)
    page.keyboard.press("Enter")
    press_until(page, "Tab", "Delete", most=400)
    page.keyboard.press("Enter")
    assert focused(page) == "Cancel"
    page.keyboard.press("Enter")
    assert focused(page) == "Delete" and (lab.output / "by-keys" / "run.json").is_file()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focused(page) == "Delete"
    page.keyboard.press("Enter")
    # The list takes the place of the run's page.
    page.locator("#nbtrain-runs .nbtrain-RunsView tr.nbt-run").first.wait_for()
    page.locator("#nbtrain-runs .nbtrain-RunsView tr[data-run=by-keys]").wait_for(state="detached")
    assert not (lab.output / "by-keys").exists()

    with fake_job(lab, "gpt-notice", "--steps", "4000") as job:
        page.locator(".nbtrain-Status", has_text="nbtrain: 1 run").wait_for()
        page.goto("about:blank")
        job.terminate()
        job.wait(PATIENCE_SECONDS)
        page.goto(lab.url("lab"))
        page.get_by_text(re.compile("gpt-notice: CANCELLED")).first.wait_for()


@pytest.mark.soak
def test_what_a_screen_reader_and_weak_eyes_meet(lab: Lab, page: Any, ended: str) -> None:
    """axe-core finds nothing in the list, a run and the form, in both themes;
    test_look.py covers the rest.
    """
    script = axe_script()
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-Launcher").wait_for()
    found = []
    page.evaluate(f"() => void window.nbtrainHost.openRun('{ended}')")
    page.locator(".nbtrain-RunView table[aria-label=events] td").first.wait_for()
    page.locator(SIDEBAR_TAB).click()
    page.locator(f".nbtrain-Sidebar [data-run={ended}] .nbt-open").wait_for()
    for theme in ("Light", "Dark"):
        choose_theme(page, theme)
        found += findings(page, script, (".nbtrain-Sidebar .nbtrain-View", ".nbtrain-RunView"))
    page.evaluate("() => void window.nbtrainHost.openForm({yaml: 'gpt-tiny'})")
    page.locator(".nbtrain-FormView .nbf-found p").first.wait_for()
    for theme in ("Dark", "Light"):
        choose_theme(page, theme)
        found += findings(page, script, (".nbtrain-FormView",))
    assert found == [], "\n".join(found)


@pytest.mark.soak
def test_tabs_come_back_and_the_theme_is_followed(lab: Lab, page: Any) -> None:
    """After a reload, tabs keep the run of the form and of TensorBoard, and follow the theme.

    A cell is inserted into the notebook that was used last.
    """
    with fake_job(lab, "gpt-tabs", "--steps", "4000"), fake_job(lab, "gpt-other", "--steps", "40"):
        open_lab(page, lab)
        page.evaluate("() => window.nbtrainHost.insertCell('made = 1')")
        page.locator(".jp-Notebook .jp-Cell", has_text="made = 1").wait_for()
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(1)
        write_notebook(lab, "tabs.ipynb", "1 + 1")
        open_notebook(page, lab, "tabs.ipynb")
        page.evaluate("() => window.nbtrainHost.insertCell('x = 1\\ny = 2')")
        wait_until(lambda: "y = 2" in page.locator(".jp-Notebook").inner_text(), "no cell was inserted")
        page.evaluate("() => window.nbtrainHost.openForm({yaml: 'gpt-125m-2xdp'})")
        page.locator(".nbtrain-FormView .nbtrain-form").wait_for()
        page.evaluate("() => window.nbtrainHost.openCompare(['gpt-tabs', 'gpt-other'])")
        page.locator(".nbtrain-CompareView").get_by_text("gpt-other").first.wait_for()
        page.evaluate("() => window.nbtrainHost.openTensorBoard('gpt-tabs')")
        board = page.frame_locator(".nbtrain-TensorBoard iframe").frame_locator("iframe[title=TensorBoard]")
        board.locator("card-view").first.wait_for()
        wait_for_layout(lab, "nbtrain-tensorboard-gpt-tabs")
        page.reload()
        board.locator("card-view").first.wait_for()
        tabs = page.locator(".lm-DockPanel-tabBar .lm-TabBar-tabLabel")
        titles = ["tabs.ipynb", "New run", "Compare gpt-tabs, gpt-other", "TensorBoard: gpt-tabs"]
        expect(tabs).to_have_text(titles)
        page.evaluate(
            "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
        )
        page.frame_locator(".nbtrain-TensorBoard iframe").locator("html[data-theme=dark]").wait_for()
        board.locator("body.dark-mode").wait_for()
        screenshot(page, "extension-tensorboard-dark")


@pytest.mark.soak
def test_stop_and_resume_while_a_cell_runs_from_a_second_browser_and_after_a_kernel_restart(
    lab: Lab, page: Any, browser: Any
) -> None:
    """A real run is stopped and resumed without a kernel while a cell runs, and a second browser shows it."""
    for verb in ("prepare", "submit"):
        command_line = [sys.executable, "-m", "nbtrain.cli", verb, "gpt-tiny", *shlex.split(WATCHED)]
        subprocess.run(command_line, env=lab.environment, check=True, capture_output=True)
    write_notebook(lab, "busy.ipynb", f"import time\n\ntime.sleep({BUSY_SECONDS})")
    open_notebook(page, lab, "busy.ipynb")
    run_cell(page, 0)
    wait_until(lambda: kernel_busy(lab), "the sleeping cell did not start")
    second = browser.new_context().new_page()
    second.set_default_timeout(1000 * PATIENCE_SECONDS)
    second.goto(lab.url("lab/workspaces/second?reset"))
    second.locator(".jp-Launcher").wait_for()
    for one in (page, second):
        one.evaluate("() => void window.nbtrainHost.openRun('watched')")
        one.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
    wait_until(lambda: shown_step(page) > 0, "no step was made")

    stop_at_once(page.locator(".nbtrain-RunView"))
    second.locator(".nbtrain-RunView [data-state=CANCELLED]").wait_for()
    assert list((lab.output / "watched" / "model").glob("global_step*/manifest.json"))
    second.locator(".nbtrain-RunView").get_by_role("button", name="Resume").click()
    page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
    assert_step_advances(page)
    assert kernel_busy(lab)

    lab.restart_kernels()
    assert_step_advances(page)
    stop_at_once(page.locator(".nbtrain-RunView"))
    page.locator(".nbtrain-RunView [data-state=CANCELLED]").wait_for()
    screenshot(page, "extension-resumed-and-stopped")


def test_the_tile_of_models_opens_a_page_that_writes(lab: Lab, page: Any, monkeypatch) -> None:
    """The tile of models opens a page in an iframe behind Jupyter's login; text is streamed if requested."""
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(lab.output))
    monkeypatch.setenv("NBTRAIN_DATA", str(lab.root / "datasets"))
    saved.save_run("gpt-models", {"model.seq_length": 512})
    page.goto(lab.url("lab?reset"))
    page.locator(".jp-LauncherCard", has_text="Try a model").click()
    shown = page.frame_locator("iframe[src*=nbtrain-models]")
    shown.get_by_label("Model").select_option("gpt-models")
    shown.get_by_label("Prompt").fill("One day")
    shown.get_by_label("New tokens").fill("20")
    shown.get_by_role("button", name="Generate").click()
    shown.get_by_role("status").get_by_text("tokens in").wait_for()
    expect(shown.get_by_role("log")).to_have_text(re.compile("^One day"))
    screenshot(page, "models-page")

    base = f"{lab.base}nbtrain-models/v1"
    headers = {"Accept": "text/event-stream"}
    with openai.OpenAI(base_url=base, api_key=TOKEN, default_headers=headers) as client:
        asked = {"model": "gpt-models", "prompt": "a", "stream": True, "extra_body": {"ignore_eos": True}}
        with client.completions.create(**asked, n=64, max_tokens=500) as stream:
            next(iter(stream))
            # The end of the text is far away: the first part was not held back.
            with urllib.request.urlopen(lab.url("nbtrain-models/metrics")) as answer:
                assert re.search(r"^nbtrain_running_texts [1-9]", answer.read().decode(), re.MULTILINE)
        chunks = client.completions.create(**asked, max_tokens=5)
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    with (
        openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.APIStatusError),
    ):
        client.completions.create(model="gpt-models", prompt="a")


@pytest.mark.soak
def test_a_file_of_text_opens_the_form_with_a_run_for_it(lab: Lab, page: Any) -> None:
    """ "Train on This Text" in the file browser opens the form with a run for the
    file; only text files have it.
    """
    words = ["whale", "captain", "harpoon", "ocean", "ship", "crew", "storm", "sail"]
    lines = [
        " ".join(words[(number * step) % 8] for step in range(1, 60)) + f" {number}." for number in range(900)
    ]
    records = [json.dumps({"story": line}) for line in lines]
    (lab.root / "notebooks" / "sea-stories.jsonl").write_text("\n".join(records))
    (lab.root / "notebooks" / "picture.png").write_bytes(b"\x89PNG")
    open_lab(page, lab)
    page.locator('.jp-SideBar [data-id="filebrowser"]').click()
    entry = '.lm-Menu-item[data-command="nbtrain:train-on-text"]'
    page.locator(".jp-DirListing-item", has_text="picture.png").click(button="right")
    page.locator('.lm-Menu-item[data-command="filebrowser:rename"]').wait_for()
    assert not page.locator(entry).is_visible()
    page.keyboard.press("Escape")
    page.locator(".jp-DirListing-item", has_text="sea-stories.jsonl").click(button="right")
    screenshot(page, "extension-text-menu")
    page.locator(entry).click()
    inputs = "[...document.querySelectorAll('.nbtrain-FormView input')]"
    page.wait_for_function(f"() => {inputs}.some((input) => input.value === 'sea-stories')")
    page.locator(".nbtrain-FormView", has_text="sea-stories.jsonl").wait_for()
    screenshot(page, "extension-text-form")
