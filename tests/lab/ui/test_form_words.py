"""Texts of the launch form after Submit, and the positions of its buttons."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from nbtrain.lab.form.answers import answer
from tests.lab.form.test_answers import run_as_submitted
from tests.lab.ui.pages import view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]
JOB = {"name": "gpt", "job_id": "j1"}
CHANGES = ["batch.max_steps: 300 -> 250"]


def test_only_what_was_submitted_is_called_so(browser: Any) -> None:
    """The form says "submitted" only if a job was submitted. If it joins an active job, a warning lists the
    settings that the job does not have.
    """
    answers = [JOB, {**JOB, "joined": "RUNNING", "not_applied": CHANGES}, {**JOB, "joined": "QUEUED"}]
    mount = f"{json.dumps(answers)}.map((one) => ui.submitted(one))"
    with view_page(browser, {}, mount, module="form/form_requests") as page:
        started, joined, same = page.evaluate("window.end")
    assert started == {
        "text": "Submitted: job j1 of gpt.",
        "toast": "gpt was submitted",
        "kind": "success",
    }
    said = "Nothing was submitted: gpt is already RUNNING"
    assert joined == {
        "text": f"{said}. Showing its job j1, which keeps its own settings. Not applied: {CHANGES[0]}.",
        "toast": f"{said}. Not applied: {CHANGES[0]}.",
        "kind": "warning",
    }
    assert same["kind"] == "info" and same["text"].endswith("which has these settings.")


def test_a_new_run_gets_a_free_name_and_buttons_that_do_what_they_say(workspace: Path, browser: Any) -> None:
    """If gpt-tiny has been trained, New Run opens with the name gpt-tiny-2 and without an error.

    A learning rate of 1000 causes a warning, with a button that sets the usual one; an exceeded limit
    disables Submit, with a button that raises it. After Submit, the run is opened.
    """
    run_as_submitted("gpt-tiny").finish("SUCCEEDED", "all steps are done")
    routes: dict[str, Any] = {
        path: lambda query, body, path=path: answer(path, body) for path in ("form", "form/assess")
    }
    routes["submit"] = lambda query, body: {"name": body["name"], "job_id": "j1"}
    routes["runs"] = lambda query, body: {"runs": []}
    host = "{openRun: (name) => (window.opened = name)}"
    mount = (
        f"ui.mountForm(root, {{server: ui.serverHere(), host: {host}, start: {{yaml: 'gpt-tiny'}}, id: 'f'}})"
    )
    mount = f"(window.again = () => {{ window.end(); window.end = {mount}; }}, {mount})"
    with view_page(browser, routes, mount, module="form/form", exports=("serverHere",)) as page:
        name, notice = page.get_by_label("Name", exact=True), page.locator(".nbf-notice")
        notice.get_by_text("The name gpt-tiny is taken, so this run is called gpt-tiny-2.").wait_for()
        expect(name).to_have_value("gpt-tiny-2")
        notice.get_by_role("button", name="Open gpt-tiny").click()
        assert page.evaluate("window.opened") == "gpt-tiny"

        # The other way: the sentence has no command, and its buttons give the name back.
        notice.get_by_role("button", name="Use the name gpt-tiny").click()
        found = page.locator(".nbf-found")
        found.get_by_text("gpt-tiny has already been trained for 300 steps.").wait_for()
        assert "`" not in found.inner_text()
        found.get_by_role("button", name="Use the name gpt-tiny-2").click()
        found.get_by_text("has already been trained").wait_for(state="detached")

        verdict = page.locator(".nbf-verdict")
        page.locator("[data-key='lr_schedule.lr'] input").first.fill("1000")
        found.get_by_text("makes the loss diverge").wait_for()
        assert "Ready" not in verdict.inner_text()
        found.get_by_role("button", name="Set lr_schedule.lr to 0.0001").click()
        found.get_by_text("makes the loss diverge").wait_for(state="detached")

        # A run that exceeds a limit cannot be submitted.
        submit = page.get_by_role("button", name="Submit", exact=True)
        page.get_by_text("All fields (").click()
        page.locator("[data-key='limits.disk_bytes'] input").fill("1000")
        found.get_by_text("checkpoints and dataset need").wait_for()
        expect(submit).to_be_disabled()
        assert "the limit is 1000 B" in found.inner_text()
        found.get_by_role("button", name="Set limits.disk_bytes to ").click()
        found.get_by_text("checkpoints and dataset need").wait_for(state="detached")
        submit.click()
        page.wait_for_function("() => window.opened === 'gpt-tiny-2'")

        # That name is taken by now: the form that is opened next has another one.
        run_as_submitted("gpt-tiny-2").finish("SUCCEEDED", "all steps are done")
        page.evaluate("window.again()")
        notice.get_by_text("The name gpt-tiny-2 is taken, so this run is called gpt-tiny-3.").wait_for()
        expect(name).to_have_value("gpt-tiny-3")


RUN = {
    "name": "gpt",
    "state": "QUEUED",
    "active": True,
    "pill": ["QUEUED", "wait"],
    "cause": "waits for 1 GPU; 0 are free; before it: first (RUNNING, 1 GPU)",
}
FOLLOW = """(() => {
  const answer = new ui.FormAnswer({ openRun() {} });
  const server = { call: async () => (await fetch("/user/x/nbtrain/runs")).json() };
  root.append(answer.node);
  answer.took(JOB, server);
  return () => answer.leave();
})()"""


def test_a_submitted_run_is_followed(browser: Any) -> None:
    """The form reports what a submitted run is waiting for, when it starts, and that it was deleted."""
    runs: list[Any] = []
    mount = FOLLOW.replace("JOB", json.dumps(JOB))
    with view_page(
        browser, {"runs": lambda query, body: {"runs": runs}}, mount, module="form/form_answer"
    ) as page:
        answer = page.get_by_role("status")
        answer.get_by_text("Submitted: job j1 of gpt.").wait_for()
        runs.append(RUN)
        answer.get_by_text(f"Now QUEUED: {RUN['cause']}.").wait_for()
        runs[0] = {**RUN, "state": "RUNNING", "pill": ["RUNNING", "live"], "cause": None}
        answer.get_by_text("Now RUNNING.").wait_for()
        runs.clear()
        answer.get_by_text("The run gpt was deleted.").wait_for()
        expect(answer.get_by_role("button")).to_have_count(0)
        assert "Submitted" not in answer.inner_text()
        page.evaluate("window.end()")


def form_page(browser: Any, width: int, overrides: Any = None, start: Any = None) -> Any:
    """Open the form of gpt-tiny with this process as its server; window.again() unmounts and mounts the
    form, with another start if given.
    """
    asked = {"yaml": "gpt-tiny", "overrides": overrides or {}, "typed": {}, "mode": "full"}
    asked, key = (asked, "f") if start is None else (start, "")
    routes = {path: lambda query, body, path=path: answer(path, body) for path in ("form", "form/assess")}
    routes["submit"] = lambda query, body: {"name": body["name"], "job_id": "j1", "notes": []}
    routes["runs"] = lambda query, body: {"runs": []}
    server = """{call: async (path, method, body) =>
        fetch(`/user/x/nbtrain/${path}`, {method, body: JSON.stringify(body)}).then(async (answer) => {
          const value = await answer.json();
          if (!answer.ok) throw Object.assign(new Error(value.message), {status: answer.status});
          return value;
        })}"""
    once = f"ui.mountForm(root, {{server: {server}, start: {json.dumps(asked)}, id: '{key}'}})"
    again = once.replace(json.dumps(asked), "start")
    mount = (
        f"{once}; window.again = (start = {json.dumps(asked)}) => {{ window.end(); window.end = {again}; }};"
        f"window.beside = (root) => void {once}"
    )
    return view_page(browser, routes, mount, width, module="form/form")


# The answer to the next question about a YAML reaches the page at window.letGo().
HOLD_ANSWER = """() => {
  const { fetch } = window;
  window.fetch = async (...asked) => {
    const answer = await fetch(...asked);
    if (!answer.url.endsWith("/form")) return answer;
    window.fetch = fetch;
    await new Promise((done) => (window.letGo = done));
    return answer;
  };
}"""
LET_GO = """() => {
  window.letGo();
  return new Promise((done) => setTimeout(done, 100));
}"""


def test_a_new_form_begins_with_the_settings_that_were_submitted_last(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example is one click away, and is opened if the last YAML does not exist any more. Overrides that
    a form was opened with are settings of its run too.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    (tmp_path / "own.yaml").write_text("extends: gpt-tiny\nname: own\n")
    with form_page(browser, 1100, start={}) as page:
        length = page.locator("[aria-label='Essential fields'] [data-key='batch.max_steps'] input")
        path, notice = page.get_by_label("or a path"), page.locator(".nbf-notice")
        path.fill("own.yaml")
        path.press("Enter")
        notice.get_by_text("Opened own.yaml.").wait_for()
        length.fill("17")
        page.locator(".nbf-line", has_text='{"batch.max_steps": 17}').wait_for()
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("Submitted: job j1 of own.").wait_for()
        page.evaluate("window.again()")
        notice.get_by_text("The form opens with the settings of own, the last run submitted").wait_for()
        expect(length).to_have_value("17")
        notice.get_by_role("button", name="Open gpt-tiny").click()
        notice.get_by_text("Opened gpt-tiny.").wait_for()
        expect(length).to_have_value("")
        # An answer about an earlier choice arrives after that about a later one, which stays.
        page.evaluate(HOLD_ANSWER)
        path.fill("own.yaml")
        path.press("Enter")
        page.wait_for_function("() => Boolean(window.letGo)")
        page.get_by_label("run YAML").select_option("gpt-125m")
        notice.get_by_text("Opened gpt-125m.").wait_for()
        page.evaluate(LET_GO)
        assert page.get_by_label("run YAML").input_value() == "gpt-125m"
        assert "Opened gpt-125m." in notice.inner_text()
        (tmp_path / "own.yaml").unlink()
        page.evaluate("window.again()")
        page.locator(".nbf-line", has_text='nb.submit("gpt-tiny"').wait_for()
        assert "last run submitted" not in notice.inner_text()
        page.evaluate("window.again({yaml: 'gpt-tiny', overrides: {'batch.max_steps': 9}})")
        page.locator(".nbf-line", has_text='{"batch.max_steps": 9}').wait_for()
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("Submitted: job j1 of gpt-tiny.").wait_for()
        page.evaluate("window.again()")
        notice.get_by_text("The form opens with the settings of gpt-tiny, the last run submitted").wait_for()
        expect(length).to_have_value("9")


@pytest.mark.parametrize("width", [1100, 620])
def test_what_comes_of_the_fields_and_submit_stay_in_sight(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The results stay visible next to the fields. In a narrow page, Submit stays at the bottom, however long
    the form is.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    with form_page(browser, width) as page:
        page.locator(
            ".nbf-found p", has_text="The cell that you can insert or copy below prepares the data first."
        ).wait_for()
        submit = page.get_by_role("button", name="Submit")
        for key in ("batch.train_tokens", "parallel.data_parallel_size"):
            field = page.locator(f"[aria-label='Essential fields'] .nbf-field[data-key='{key}']")
            field.evaluate("node => node.scrollIntoView({block: 'center'})")
            box = submit.bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= 900, (key, box)
        fields = page.locator("[aria-label='Essential fields']").bounding_box()
        assert (box["x"] > fields["x"] + fields["width"]) == (width == 1100)
        # The space for a problem with the name is reserved, so nothing moves.
        boxes = [page.get_by_label("run YAML"), page.locator("[aria-label='Essential fields']")]
        page.get_by_label("Name", exact=True).scroll_into_view_if_needed()
        before = [one.bounding_box() for one in boxes]
        page.get_by_label("Name", exact=True).fill("My Run")
        page.locator(".nbf-name-help", has_text="Must be 1 to 53 lower case letters").wait_for()
        if width == 1100:
            assert [one.bounding_box() for one in boxes] == before


def test_a_file_that_is_not_there_is_marked_at_its_field(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file is marked at its field and counted on its tab; files that the generated cell creates are
    listed separately.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    with form_page(browser, 1100) as page:
        page.get_by_text("All fields").click()
        page.get_by_label("search all fields").fill("evaluation.tasks")
        field = page.locator(".nbf-field[data-key='evaluation.tasks']")
        field.locator("textarea").fill("[{task: lambada, path: nope.jsonl}]")
        wrong = field.locator(
            ".nbf-error", has_text="evaluation.tasks.0.path is not a file with lambada questions"
        )
        wrong.wait_for()
        assert "relative paths start at the workspace" in wrong.inner_text()
        # A text that is longer than its box can be scrolled with the keyboard, in every browser.
        expect(wrong).to_have_attribute("tabindex", "0")
        field.locator("textarea").press("Tab")
        expect(wrong).to_be_focused()
        expect(page.get_by_role("tab", name="Evaluation").locator(".nbf-wrong")).to_have_text("1 problem")
        said = page.locator(".nbf-found p").all_inner_texts()
        does = said.index("The cell that you can insert or copy below prepares the data first.")
        assert said[does - 1].endswith("to make what is missing.")
        assert said[-1] == "Correct the path (relative paths start at the workspace), or remove the entry."
        page.get_by_label("search all fields").fill("")
        page.get_by_title("go to evaluation.tasks").click()
        assert field.locator("textarea").evaluate("node => node === document.activeElement")


def test_keys_of_a_section_are_fields_while_its_switch_is_on(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the switch of a section is on, its keys are fields: they are counted, marked, found by the
    search, reset, and kept when the page is reloaded.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    with form_page(browser, 1100, {"lora.rank": 8, "init_from": "base"}) as page:

        def field(key: str) -> Any:
            return page.locator(f".nbf-all .nbf-field[data-key='{key}']")

        def line(words: str) -> None:
            page.locator(".nbf-line", has_text=words).filter(visible=True).wait_for()

        page.get_by_text("All fields").click()
        # Only the fields of the chosen backend are shown.
        partition = field("backend.slurm.partition")
        assert (
            field("backend.kind").locator("label").inner_text() == "Backend\nkind" and partition.count() == 0
        )
        field("backend.kind").locator("select").focus()
        field("backend.kind").locator("select").select_option("slurm")
        assert partition.locator("label").inner_text() == "Partition\nslurm.partition"
        assert field("backend.kind").locator("select:focus").count() == 1
        field("backend.kind").locator("select").select_option("local")
        expect(partition).to_have_count(0)
        page.get_by_role("tab", name="Model").click()
        line('{"init_from": "base", "lora.rank": 8}')
        expect(field("lora.rank").locator("input")).to_have_value("8")
        expect(field("lora")).to_contain_text("as opened")
        beta = field("dpo.beta")
        expect(beta.locator("input")).to_be_disabled()
        assert "Used only if dpo is on." in beta.get_attribute("title")
        field("dpo").locator("input").check()
        line('{"init_from": "base", "lora.rank": 8, "dpo": {}}')
        beta.locator("input").fill("0.2")
        field("lora.alpha").locator("input").fill("-1")
        wrong = field("lora.alpha").locator(".nbf-error", has_text="Must be more than 0.")
        wrong.wait_for()
        counts = page.get_by_role("tab", name="Model").locator(".nbf-count")
        expect(counts).to_have_text(["1 problem", "6 changed fields"])
        # Off: the typed values stay but do not count.
        field("lora").locator("input").uncheck()
        # Without a problem, Tab moves from control to control.
        expect(field("lora.alpha").locator(".nbf-help")).not_to_have_attribute("tabindex", "0")
        line('{"init_from": "base", "dpo.beta": 0.2}')
        expect(field("lora.alpha").locator("input")).to_have_value("-1")
        page.evaluate("window.again()")
        page.get_by_text("All fields").click()
        page.get_by_label("search all fields").fill("rank of an adapter")
        expect(field("lora.rank").locator("input")).to_be_disabled()
        page.get_by_label("search all fields").fill("lora")
        field("lora").locator("input").check()
        field("lora.alpha").get_by_role("button").click()
        field("lora.rank").get_by_role("button").click()
        line('{"init_from": "base", "lora": {}, "dpo.beta": 0.2}')
        page.get_by_role("button", name="Reset", exact=True).click()
        line('{"init_from": "base", "lora.rank": 8}')
        expect(field("lora").locator("input")).to_be_checked()


def test_two_views_of_a_form_hold_the_same(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two views of a form have the same values, and typing in one does not discard what was typed in the
    other.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    with form_page(browser, 1100) as page:
        page.locator(".nbf-line", has_text="gpt-tiny").wait_for()
        page.evaluate("window.beside(document.body.appendChild(document.createElement('div')))")
        page.locator(".nbf-line", has_text="gpt-tiny").nth(1).wait_for()
        first, second = (page.locator(".nbtrain-form").nth(at) for at in (0, 1))
        first.get_by_label("Name", exact=True).fill("other")
        second.locator(".nbf-line", has_text="other").wait_for()
        second.locator("select", has_text="twin: ").select_option("twin")
        for view in (first, second):
            view.locator(".nbf-line", has_text="twin").wait_for()
            expect(view.get_by_label("Name", exact=True)).to_have_value("other")


# A model whose kernel answers by the routes, and queues requests while `busy`.
KERNEL = """(() => {
    const on = {}, queue = [], start = START;
    const hear = async ({ kind, id, path, request }) => {
        if (kind !== "ask") return;
        const asked = { method: "POST", body: JSON.stringify(request) };
        const answer = await fetch(`/user/x/nbtrain/${path}`, asked);
        on["msg:custom"]({ kind: "answer", id, value: await answer.json() });
    };
    const send = (message) => void (window.busy ? queue.push(message) : hear(message));
    const model = { get: () => null, on: (name, act) => (on[name] = act), off() {}, send };
    window.idle = () => {
        window.busy = false;
        queue.splice(0).forEach(hear);
    };
    window.lost = (place) => void ui.mountForm(place, {start, isGone: () => true});
    return ui.mountForm(root, {model, start, id: "f"});
})()"""


def test_a_form_whose_kernel_is_busy_submits_later_and_says_so(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its kernel is busy, the form says that it will submit later. It neither creates nor offers a cell
    with values that were not checked.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    start = {"yaml": "gpt-tiny", "overrides": {"data": {"sources": [{"kind": "mock"}]}}, "mode": "full"}
    routes = {path: lambda query, body, path=path: answer(path, body) for path in ("form", "form/assess")}
    assessed = routes["form/assess"]
    routes["form/assess"] = lambda query, body: {**assessed(query, body), "may_submit": True}
    routes["submit"] = lambda query, body: JOB
    with view_page(
        browser, routes, KERNEL.replace("START", json.dumps(start)), module="form/form", still=True
    ) as page:
        buttons = [page.get_by_role("button", name=name) for name in ("Submit", "Copy as cell")]
        name = page.get_by_label("Name", exact=True)

        def can(*wanted: bool) -> None:
            for button, enabled in zip(buttons, wanted, strict=True):
                expect(button).to_be_enabled(enabled=enabled)

        page.wait_for_function("!document.querySelector('.nbf-buttons button:nth-child(2)').disabled")
        page.evaluate("window.busy = true")
        name.fill("other")
        # At once, before the answer.
        assert not any(one.is_enabled() for one in buttons)
        page.clock.run_for(300)
        page.evaluate("window.idle()")
        page.locator(".nbf-line", has_text="other").wait_for()
        can(True, True)
        page.evaluate("window.busy = true")
        buttons[0].click()
        page.clock.run_for(16_000)
        said = page.locator(".nbf-answer")
        said.get_by_text("When the cell finishes, the kernel submits the values").wait_for()
        can(False, True)
        page.evaluate("window.idle()")
        said.get_by_text("Submitted: job j1 of gpt.").wait_for()
        can(True, True)
        page.evaluate("window.lost(document.body.appendChild(document.createElement('div')))")
        gone = page.locator(".nbf-kernel", has_text="The kernel that created this form has ended").last
        gone.wait_for()
        assert gone.inner_text().endswith("form's cell again to restore them.")
