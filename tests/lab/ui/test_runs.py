"""The list of runs in a browser, without a server or kernel: filters, sorting, tags, actions and
selection.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.end_to_end.accessible import axe_script, findings
from tests.lab.ui.listed import ListServer
from tests.lab.ui.pages import answered, view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]
# A page gets its server by serverHere(), which the module alone does not export.
MOUNT = """(() => {
  const call = async (path, method = "GET", body = null) => {
    const answer = await fetch(`/user/x/nbtrain/${path}`, { method, body: body && JSON.stringify(body) });
    const value = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(value.message), { status: answer.status });
    return value;
  };
  const openCompare = (names) => (window.compared = names);
  const openForm = (start) => (window.form = start || "new");
  const host = { openRun: (name) => (window.opened = name), openCompare, openForm };
  window.mounted = (place, compact) => ui.mountRuns(place, { server, host, compact, model: MODEL });
  const server = { call };
  return window.mounted(root, COMPACT);
})()"""
# The traits of a notebook's table with archived runs.
WITH_ARCHIVED = """(() => {
  const traits = { archived: true, names: [], rows: [], root_id: "" };
  return { get: (name) => traits[name], on() {}, off() {}, send() {} };
})()"""
# Opened twice, with the first item as it is before the server says which actions are allowed.
OPEN_MENU = """(button) => {
  button.click();
  document.querySelector('.nbt-run-menu').hidePopover();
  button.click();
  window.first = document.querySelector('.nbt-run-menu button');
}"""
SMALL_TARGETS = """() => [...document.querySelectorAll('tbody button, tbody label, .nbt-tools button')]
    .filter((node) => node.offsetWidth && !node.matches('.nbt-open'))
    .filter((node) => Math.min(node.offsetWidth, node.offsetHeight) < 24)
    .map((node) => node.outerHTML)"""
SECOND = """() => {
  const place = document.createElement('div');
  document.body.append(place);
  window.endSecond = window.mounted(place, true);
}"""


def listing(
    browser: Any,
    server: ListServer,
    compact: bool = False,
    width: int = 1400,
    model: str = "null",
    still: bool = False,
) -> Any:
    mount = MOUNT.replace("COMPACT", str(compact).lower()).replace("MODEL", model)
    return view_page(browser, server.routes, mount, width=width, module="runs/runs", still=still)


def go_on(page: Any, server: ListServer, seconds: int) -> int:
    """Advance the page's clock by this time and return how often the list was requested."""
    before = server.looks
    for _ in range(10 * seconds):
        page.clock.run_for(100)
        # An answer schedules the next request.
        answered(page)
    return server.looks - before


def names(page: Any) -> list[str]:
    return page.locator("tr.nbt-run").evaluate_all("rows => rows.map(row => row.dataset.run)")


@pytest.fixture
def server() -> Iterator[ListServer]:
    yield ListServer(5)


def test_a_person_works_with_the_list(server: ListServer, browser: Any) -> None:
    """A user can filter by text, state and tag, sort, edit tags and notes, confirm a deletion, and compare
    runs.
    """
    with listing(browser, server) as page:
        page.get_by_text("5 runs, 1 active").wait_for()
        running = page.locator("tr[data-run=gpt-0000]")
        assert all(words in running.inner_text() for words in ("RUNNING", "120 / 600", "3.5000", "12 min"))
        assert running.locator("[data-column=backend]").inner_text() == "slurm\n2 replicas, 16 ranks"
        assert running.locator("[data-column=created]").inner_text().endswith("\n10 min ago")
        # The loss as a curve with a gap for NaN, and in words; a run without points has none.
        curve = running.get_by_role("img", name="loss 8 at step 1")
        curve.wait_for()
        assert curve.locator("path").get_attribute("d").count("M") == 2
        assert page.locator("tr[data-run=gpt-0004] svg").count() == 0
        # Rows in sight are asked for together; after 15 seconds an active run is asked for again.
        assert len(server.curves_of) < len(server.rows)
        words = page.get_by_label("show only runs that contain this text")
        words.fill("out of memory")
        assert names(page) == ["gpt-0002"]
        # A pattern is one of names, as in `nbtrain runs 'gpt-*'`; an unfinished one is plain text.
        for pattern, found in (("gpt-000[13]", ["gpt-0001", "gpt-0003"]), ("000*", []), ("gpt-000[", [])):
            words.fill(pattern)
            assert names(page) == found
        words.fill("")
        page.get_by_role("button", name="team=vision").first.click()
        assert names(page) == ["gpt-0001", "gpt-0003"]
        page.get_by_label("show runs by tag").select_option("")
        page.get_by_label("show runs by state").select_option("ended")
        assert names(page) == ["gpt-0001", "gpt-0002", "gpt-0003", "gpt-0004"]
        page.get_by_title("sort by Loss").click()
        assert names(page) == ["gpt-0003", "gpt-0002", "gpt-0001", "gpt-0004"]
        head = page.locator("th[data-column=loss]")
        assert head.get_attribute("aria-sort") == "ascending"
        page.get_by_label("show runs by state").select_option("")

        page.get_by_role("button", name="Actions for gpt-0001").click()
        page.get_by_role("menuitem", name="Tags and notes").click()
        editor = page.get_by_role("form", name="Tags and notes of gpt-0001")
        tags = editor.get_by_label("Tags")
        assert tags.input_value() == "team=vision"
        tags.fill("team=bad")
        page.keyboard.press("Enter")
        editor.get_by_text("labels.team = 'bad': is not good.").wait_for()
        tags.fill("stage=final")
        editor.get_by_label("Notes").fill("<i>keep</i>")
        editor.get_by_role("button", name="Save").click()
        row = page.locator("tr[data-run=gpt-0001]")
        row.locator("[data-column=about]").get_by_text("<i>keep</i>").wait_for()
        assert row.locator(".nbt-tag").all_text_contents() == ["stage=final"]
        assert page.asked[-1] == (
            "PATCH",
            "run/gpt-0001",
            {"labels": {"team": None, "stage": "final"}, "notes": "<i>keep</i>"},
        )

        page.get_by_role("button", name="Actions for gpt-0002").evaluate(OPEN_MENU)
        delete = page.get_by_role("menuitem", name="Delete")
        delete.wait_for()
        # A pressed item stays the same element when the server's actions arrive.
        assert page.evaluate("window.first === document.activeElement && window.first.isConnected")
        delete.click()
        page.get_by_role("alertdialog").get_by_text("Delete gpt-0002 with all its files?").wait_for()
        page.keyboard.press("Escape")
        assert "gpt-0002" in names(page)
        page.get_by_role("button", name="Actions for gpt-0002").click()
        page.get_by_role("menuitem", name="Delete").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
        page.get_by_text("gpt-0002: deleted.").wait_for()
        assert "gpt-0002" not in names(page)

        page.get_by_role("button", name="Compare all").click()
        assert page.evaluate("window.compared") == ["gpt-0003", "gpt-0001", "gpt-0000", "gpt-0004"]
        page.get_by_role("button", name="Clone gpt-0001").click()
        assert page.evaluate("window.form") == {"clone": "gpt-0001"}
        assert not page.get_by_role("button", name="Clone gpt-0000").is_visible()
        for name in ("gpt-0003", "gpt-0004"):
            page.get_by_label(f"Select {name}").check()
        page.get_by_role("button", name="Compare").click()
        assert page.evaluate("window.compared") == ["gpt-0003", "gpt-0004"]
        page.get_by_role("button", name="Archive").click()
        page.get_by_text("Archived 2 runs.").wait_for()
        assert not {"gpt-0003", "gpt-0004"} & {*names(page)}
        page.get_by_label("show runs by state").select_option("archived")
        page.locator("tr[data-run=gpt-0003]").wait_for()
        assert sorted(names(page)) == ["gpt-0003", "gpt-0004"]


def test_columns_order_and_csv_are_the_users(browser: Any) -> None:
    """A setting can be shown as a column, Shift+click sorts by a second column, and the CSV has both. The
    choice is kept when the page is reloaded.
    """
    with listing(browser, ListServer(9)) as page:
        page.get_by_text("9 runs, 1 active").wait_for()
        page.get_by_text("Columns", exact=True).click()
        page.get_by_label("Backend").uncheck()
        search = page.get_by_label("search settings and results to add as columns")
        search.fill("lr")
        # Another choice is answered by the server while the user types.
        page.get_by_label("Backend").check()
        page.get_by_label("Backend").uncheck()
        expect(search).to_have_value("lr")
        page.get_by_role("button", name="lr_schedule.lr").click()
        cell = page.locator("tr[data-run=gpt-0002] td[data-column='lr_schedule.lr']")
        cell.get_by_text("2.0e-03").wait_for()
        assert page.locator("th[data-column=backend]").count() == 0
        page.keyboard.press("Escape")
        page.get_by_title("sort by State").click()
        page.get_by_title("sort by lr_schedule.lr").click(modifiers=["Shift"])
        page.get_by_title("sort by lr_schedule.lr").click(modifiers=["Shift"])
        states = page.locator("tr.nbt-run td[data-column=state]").all_inner_texts()
        assert states == sorted(states) and names(page)[:2] == ["gpt-0003", "gpt-0002"]
        succeeded = [name for name, state in zip(names(page), states) if state == "SUCCEEDED"]
        assert len(succeeded) > 2 and succeeded == sorted(succeeded, reverse=True)
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert lines[0] == "Run,State,Step,Loss,Validation,Time left,Submitted,lr_schedule.lr,Notes and cause"
        assert len(lines) == 10 and lines[2].startswith("gpt-0002,FAILED,122,3.498,")
        assert lines[2].endswith(
            ",0.002,rank 1 failed at step 120: CUDA out of memory. Tried to allocate 2.00 GiB"
        )
        page.evaluate("() => { window.end(); window.end = window.mounted(root, false); }")
        cell.get_by_text("2.0e-03").wait_for()
        page.get_by_text("Columns", exact=True).click()
        page.get_by_role("button", name="Reset columns").click()
        page.locator("th[data-column=backend]").wait_for()
        assert page.locator("th[data-column='lr_schedule.lr']").count() == 0


def test_a_sweep_has_a_row_that_folds_filters_and_compares(browser: Any) -> None:
    """The runs of a sweep are below its row, folded if they are many. The row shows only them, chooses them
    all, and compares the best ones.
    """
    server = ListServer(9)
    for row in server.rows[1:]:
        row["labels"] = {"sweep": "lr-study"}
    with listing(browser, server) as page:
        sweep = page.locator("tr[data-sweep=lr-study]")
        words = "8 runs: 5 SUCCEEDED, 1 FAILED, 1 CANCELLED, 1 LOST; best validation loss 3.5920 (gpt-0008)"
        sweep.get_by_text(words).wait_for()
        assert names(page) == ["gpt-0000"]
        fold = sweep.get_by_role("button", name="sweep lr-study")
        assert fold.get_attribute("aria-expanded") == "false"
        fold.click()
        assert names(page) == [row["name"] for row in server.rows]
        fold.click()
        page.get_by_text("Columns", exact=True).click()
        page.get_by_label("Backend").uncheck()
        page.keyboard.press("Escape")
        assert sweep.count() == 1, "other columns do not leave a second row"
        sweep.get_by_role("button", name="Only this sweep").click()
        assert names(page) == [row["name"] for row in server.rows[1:]], "alone it is not folded"
        sweep.get_by_role("button", name="Show all runs").click()
        assert len(names(page)) == 1
        sweep.get_by_role("button", name="Compare best 4").click()
        assert page.evaluate("window.compared") == ["gpt-0008", "gpt-0006", "gpt-0004", "gpt-0002"]
        sweep.get_by_label("Select all runs of the sweep lr-study").check()
        page.get_by_text("8 selected").wait_for()
        fold.press("Enter")
        assert page.locator("tr.nbt-run input:checked").count() == 8

        # A sweep that grows is not folded above the text that the user writes.
        for row in server.rows[1:]:
            row["labels"] = {"sweep": "grown"} if row in server.rows[1:7] else {}
        page.evaluate("window.end.look()")
        page.get_by_text("6 runs:").wait_for()
        page.get_by_role("button", name="Actions for gpt-0001").click()
        page.get_by_role("menuitem", name="Tags and notes").click()
        notes = page.get_by_role("form", name="Tags and notes of gpt-0001").get_by_label("Notes")
        notes.fill("keep")
        for row in server.rows[7:]:
            row["labels"] = {"sweep": "grown"}
        page.evaluate("window.end.look()")
        page.get_by_text("8 runs:").wait_for()
        assert notes.input_value() == "keep"


def test_several_runs_are_tagged_stopped_and_deleted_with_one_question(browser: Any) -> None:
    """Selected runs are changed together, by mouse or keyboard; runs that the server refuses to change are
    named.
    """
    server = ListServer(150)
    with listing(browser, server) as page:
        page.get_by_text("150 runs, 1 active").wait_for()
        bar = page.locator(".nbt-chosen")
        page.get_by_label("Select all runs on this page").check()
        bar.get_by_text("100 selected").wait_for()
        # A comparison of so many is not offered.
        assert bar.get_by_role("button", name="Compare").is_disabled()
        bar.get_by_text("A comparison shows at most 12 runs. Select fewer runs.").wait_for()
        bar.get_by_role("button", name="Select all 150").click()
        bar.get_by_text("150 selected").wait_for()
        bar.get_by_role("button", name="Clear").click()

        for name in ("gpt-0000", "gpt-0001", "gpt-0002"):
            page.get_by_label(f"Select {name}", exact=True).check()
        bar.get_by_role("button", name="Tag...").click()
        editor = page.get_by_role("form", name="Tags of 3 runs")
        editor.get_by_label("Add tags").fill("paper=2026")
        editor.get_by_label("team").check()
        page.keyboard.press("Tab")
        editor.get_by_role("button", name="Save").press("Enter")
        page.get_by_text("Tagged: 3 runs.").wait_for()
        # The words come with the rows that show the tags.
        assert page.locator("tr[data-run=gpt-0002] .nbt-tag").all_text_contents() == ["paper=2026"]
        assert page.locator("tr[data-run=gpt-0003] .nbt-tag").first.text_content() == "team=vision"

        bar.get_by_role("button", name="Stop 1 run...").click()
        question = page.get_by_role("alertdialog")
        question.get_by_text("Stop gpt-0000?").wait_for()
        with page.expect_response("**/run/gpt-0000/stop"):
            question.get_by_role("button", name="Stop").press("Enter")
        page.locator("tr[data-run=gpt-0000]", has_text="Stopping...").wait_for()
        assert ("POST", "run/gpt-0000/stop", {}) in page.asked

        del server.routes["run/gpt-0002"]
        bar.get_by_role("button", name="Delete 2 runs...").click()
        question.get_by_text("Delete gpt-0001, gpt-0002 with all their files?").wait_for()
        page.keyboard.press("Escape")
        assert "gpt-0001" in names(page)
        bar.get_by_role("button", name="Delete 2 runs...").press("Enter")
        question.get_by_role("button", name="Delete").press("Enter")
        page.get_by_text("Deleted: gpt-0001. Failed for gpt-0002: HTTP 404").wait_for()
        assert "gpt-0001" not in names(page)


def test_a_hovered_row_is_readable_and_targets_are_large_enough(server: ListServer, browser: Any) -> None:
    """At a width of 1024 pixels, nothing is cut off, axe-core finds no problem in a hovered row, and click
    targets are at least 24 pixels.
    """
    with listing(browser, server, width=1024) as page:
        page.get_by_text("5 runs, 1 active").wait_for()
        page.locator("tr[data-run=gpt-0001]").hover()
        fits = "node => node.scrollWidth <= node.clientWidth"
        assert page.locator(".nbt-scroll").evaluate(fits)
        assert findings(page, axe_script(), ["#root"]) == []
        small = page.evaluate(SMALL_TARGETS)
        assert small == []


def test_archived_runs_are_in_a_table_that_was_asked_for_them(server: ListServer, browser: Any) -> None:
    """In a table that includes archived runs, these are marked and can be unarchived; other lists show only
    active ones.
    """
    for name in ("gpt-0000", "gpt-0003", "gpt-0004"):
        server.row(name).update(archived=True, labels={})
    with listing(browser, server) as page:
        page.get_by_text("3 runs, 1 active").wait_for()
    with listing(browser, server, model=WITH_ARCHIVED) as page:
        page.get_by_text("5 runs, 1 active").wait_for()
        row = page.locator("tr[data-run=gpt-0002]")
        assert page.locator("tr[data-run=gpt-0003]").get_by_text("archived", exact=True).count() == 1
        assert row.get_by_text("archived", exact=True).count() == 0
        server.row("gpt-0002").update(archived=True, labels={})
        row.get_by_text("archived", exact=True).wait_for()
        page.get_by_label("Select gpt-0003").check()
        page.get_by_role("button", name="Restore from the archive").click()
        page.get_by_text("Restored gpt-0003 from the archive.").wait_for()
        assert page.asked[-1] == ("PATCH", "run/gpt-0003", {"archived": False})
        page.get_by_label("Select gpt-0001").check()
        page.get_by_role("button", name="Archive").wait_for()


def test_stop_shows_as_such_and_the_end_is_read_out(server: ListServer, browser: Any) -> None:
    """After Stop, polling reuses the elements of the rows, so that the focus stays; a stop that fails later
    and the end of the run are shown, and the end is announced to screen readers.
    """
    with listing(browser, server, compact=True, width=320) as page:
        page.locator("tr[data-run=gpt-0000] .nbt-open").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "gpt-0002"
        page.keyboard.press("Enter")
        assert page.evaluate("window.opened") == "gpt-0002"
        page.evaluate("window.before = document.querySelector('tr[data-run=gpt-0002]')")
        stop = page.get_by_label("Stop gpt-0000")
        assert stop.get_attribute("title").startswith("Stop the job: the ranks exit at the next step")
        server.row("gpt-0000").update(state="QUEUED", queued=True)
        page.locator("tr[data-run=gpt-0000] [title='Remove the job from the queue.']").wait_for()
        server.row("gpt-0000").update(state="RUNNING", queued=False)
        page.locator("tr[data-run=gpt-0000] [title^='Stop the job: the ranks']").wait_for()
        stop.click()
        page.locator(".nbt-pill", has_text="Stopping...").wait_for()
        ended = {"state": "CANCELLED", "active": False, "pill": ["CANCELLED", "calm"], "cause": "saved"}
        asked = page.get_by_text("gpt-0000: Stop requested: the ranks exit")
        asked.wait_for()
        assert ("POST", "run/gpt-0000/stop", {}) in page.asked
        message = "the job was asked to stop 180 s ago"
        server.failed_actions = {"gpt-0000": {"action": "stop", "message": message, "at": 1.0}}
        page.locator(".nbt-error", has_text=f"gpt-0000: Stop failed: {message}").wait_for()
        expect(page.locator("tr[data-run=gpt-0000] .nbt-about.nbt-error")).to_have_text(
            f"Stop failed: {message}"
        )
        expect(page.locator("tr[data-run=gpt-0000] .nbt-pill")).to_have_text("RUNNING")
        expect(stop).to_be_enabled()
        stop.click()
        asked.wait_for()
        server.failed_actions = {}
        server.row("gpt-0000").update(ended)
        page.locator("tr[data-run=gpt-0000] .nbt-pill", has_text="CANCELLED").wait_for()
        assert asked.count() == 0
        assert page.locator("[aria-live=polite]").inner_text() == "gpt-0000: CANCELLED. saved"
        assert page.evaluate("window.before === document.querySelector('tr[data-run=gpt-0002]')")
        assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_of_a_thousand_runs_one_page_is_in_the_document(browser: Any) -> None:
    with listing(browser, ListServer(1000)) as page:
        page.get_by_text("1,000 runs, 1 active").wait_for()
        assert len(names(page)) == 100
        page.get_by_title("next page").click()
        assert (names(page)[0], len(names(page))) == ("gpt-0100", 100)
        page.get_by_label("show only runs that contain this text").fill("gpt-0999")
        assert names(page) == ["gpt-0999"]


def test_a_list_without_runs_says_how_the_first_one_is_made(browser: Any) -> None:
    """An empty list says how to create the first run; if a filter matches nothing, it has another text."""
    server = ListServer(0)
    with listing(browser, server) as page:
        page.get_by_text("No runs yet.").get_by_role("button", name="New run").click()
        assert page.evaluate("window.form") == "new"
        server.rows += ListServer(1).rows
        page.locator("tr[data-run=gpt-0000]").wait_for()
        page.get_by_label("show only runs that contain this text").fill("no such name")
        page.get_by_text("No runs match the filter.").wait_for()
        assert page.get_by_role("button", name="New run").count() == 0


def test_a_list_out_of_sight_asks_for_nothing(server: ListServer, browser: Any) -> None:
    with listing(browser, server, still=True) as page:
        go_on(page, server, 1)
        page.get_by_text("5 runs, 1 active").wait_for()
        page.evaluate("root => (document.getElementById('root').style.display = 'none')")
        # The visibility observer reports with the next frame.
        page.screenshot()
        assert go_on(page, server, 20) <= 1
        page.evaluate("() => (document.getElementById('root').style.display = '')")
        page.screenshot()
        server.row("gpt-0000")["words"]["step"] = "121 / 600"
        assert go_on(page, server, 3) >= 1
        page.get_by_text("121 / 600").first.wait_for()


def test_lists_of_one_page_share_a_poll(server: ListServer, browser: Any) -> None:
    """Several lists on a page share one poll: a second list gets the newest response immediately, and polling
    continues while one of them is visible.
    """
    with listing(browser, server, still=True) as page:
        go_on(page, server, 1)
        page.get_by_text("5 runs, 1 active").wait_for()
        looks = server.looks
        page.evaluate(SECOND)
        page.wait_for_function("document.querySelectorAll('tr[data-run=gpt-0000]').length === 2")
        assert server.looks == looks
        # One poll is due every two seconds, for any number of lists.
        assert 8 <= go_on(page, server, 20) <= 11
        page.evaluate("() => window.end()")
        server.row("gpt-0000")["words"]["step"] = "121 / 600"
        go_on(page, server, 3)
        page.locator(".nbt-compact", has_text="121 / 600").wait_for()


MODEL = """(() => {
  const traits = { rows: ROWS, names: [], root_id: "" };
  const send = (asked) => (window.sent = asked);
  const on = (event, listener) => event === "msg:custom" && (window.answer = listener);
  const model = { get: (name) => traits[name], on, off: () => {}, send };
  window.again = (place) => (window.endSecond = ui.mountRuns(place, { server: null, model }));
  return ui.mountRuns(root, { server: null, model, compact: false });
})()"""


def test_without_a_server_stop_says_that_the_kernel_hears_it_later(server: ListServer, browser: Any) -> None:
    """Without a server, Stop says that the kernel will stop the job when its running cell finishes."""
    mount = MODEL.replace("ROWS", json.dumps(server.rows))
    with view_page(browser, server.routes, mount, module="runs/runs") as page:
        page.get_by_label("Stop gpt-0000").click()
        said = page.locator(".nbtrain-runs [role=status]")
        assert said.inner_text() == (
            "gpt-0000: Stop requested: the kernel stops the job when its running cell finishes."
        )
        assert page.evaluate("window.sent") == {"kind": "stop", "name": "gpt-0000"}
        refusal = {"kind": "stop", "name": "gpt-0000", "error": "the job was asked to stop 180 s ago"}
        page.evaluate("(refusal) => window.answer(refusal)", refusal)
        expect(said).to_contain_text("the job was asked to stop 180 s ago")
        # The kernel sends rows until the last view of the table has ended.
        page.evaluate("() => void window.again(document.body.appendChild(document.createElement('div')))")
        for end, kind in (("end", "push"), ("endSecond", "rest")):
            assert page.evaluate(f"() => (window.{end}(), window.sent)") == {"kind": kind}


def test_runs_of_another_output_folder_are_not_opened_by_their_names(
    server: ListServer, browser: Any
) -> None:
    """Runs in another output directory cannot be opened by name, because the server may have other runs with
    the same names.
    """
    traits = json.dumps({"rows": server.rows[:2], "names": [], "root_id": "another"})
    model = f"{{get: (name) => ({traits})[name], on() {{}}, off() {{}}, send() {{}}}}"
    with listing(browser, server, model=model) as page:
        page.get_by_text("This Jupyter server uses another output directory").wait_for()
        assert page.locator("button.nbt-open").count() == 0
        assert page.locator("b.nbt-open").all_inner_texts() == ["gpt-0000", "gpt-0001"]
        for name in ("gpt-0000", "gpt-0001"):
            page.get_by_label(f"Select {name}").check()
        page.get_by_text("2 selected").wait_for()
        assert page.get_by_role("button", name="Compare").count() == 0


def test_in_a_sidebar_of_300_pixels_stop_stands_beside_the_name(server: ListServer, browser: Any) -> None:
    """In a sidebar of 300 pixels, the buttons are on the same line as the run's name, however long it is, and
    nothing scrolls sideways.
    """
    with listing(browser, server, compact=True, width=300) as page:
        stop = page.get_by_label("Stop gpt-0000").bounding_box()
        name = page.locator("tr[data-run=gpt-0000] .nbt-open").bounding_box()
        assert abs(stop["y"] + stop["height"] / 2 - name["y"] - name["height"] / 2) < 4
        assert page.evaluate("document.documentElement.scrollWidth") == 300


def test_a_row_says_stopping_and_what_a_waiting_run_waits_for(server: ListServer, browser: Any) -> None:
    """A row that is stopping shows Stopping... and no Stop button, a waiting run shows what it is waiting
    for, and ages increase without a request.
    """
    server.rows[0] |= {"asked": "stop", "pill": ["Stopping...", "wait"]}
    waiting = server.rows[1]
    waiting |= {"state": "QUEUED", "active": True, "pill": ["QUEUED", "wait"], "cause": "waits for 1 GPU"}
    server.rows[2] |= {"ended": time.time() - 5}
    with listing(browser, server, compact=True, width=300) as page:
        stopping = page.locator("tr[data-run=gpt-0000]")
        assert stopping.locator(".nbt-pill").inner_text() == "Stopping..."
        assert page.get_by_label("Stop gpt-0000").is_disabled()
        assert "waits for 1 GPU" in page.locator("tr[data-run=gpt-0001]").inner_text()
        ended = page.locator("tr[data-run=gpt-0002] .nbt-line")
        before = ended.inner_text()
        assert before.endswith("s ago")
        page.wait_for_function(
            "(before) => document.querySelector('tr[data-run=gpt-0002] .nbt-line').innerText !== before",
            arg=before,
        )
