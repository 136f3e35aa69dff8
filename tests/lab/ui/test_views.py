"""Requests that views send and what they would draw, run in node; each test takes a tenth of a second."""

import itertools
import json
from pathlib import Path

import pytest

from tests.lab.ui.nodes import in_node, needs_node

pytestmark = needs_node

COMPARED = """
const row = (tag) => ({ tag, title: tag, form: "number", y_name: "", from_zero: true, smooth: false });
const curve = (...time) => ({ step: time, tokens: time, time, value: time });
const charts = [{ title: "", names: ["loss", "reward_margin", "learning_rate", "validation_loss"] }];
const tags = [row("loss"), row("validation_loss")];
const series = { loss: curve(100, 110, 120), validation_loss: curve(120) };
const curves = new Map([["a", { tags, charts, series }]]);
const specs = (axis) => ui.comparedSpecs(["a"], curves, { axis, smoothing: 0, all: true });
"""


def test_a_comparison_without_a_server_has_the_curves_that_came_along(tmp_path: Path) -> None:
    """Without a server, a comparison shows the curves that it was created with, and the chart menu lists them
    all.
    """
    code = f"{COMPARED} return specs('step').map(([tag]) => tag);"
    assert in_node("compare/compare", code, tmp_path) == ["loss", "validation_loss"]


def test_all_curves_of_a_compared_run_begin_at_one_time(tmp_path: Path) -> None:
    """All curves of a compared run start at the same time: if the first validation came after 20 seconds, it
    is drawn at 20, not at 0.
    """
    code = f"{COMPARED} return specs('time').map(([, spec]) => spec.lines[0].x);"
    assert in_node("compare/compare", code, tmp_path) == [[0, 10, 20], [20]]


def test_runs_that_differ_only_in_their_seed_are_one_line_with_a_band(tmp_path: Path) -> None:
    """Runs that differ only in their seed are one line with a band, from the values that at least two have,
    also at other times; a run with another learning rate is another line.
    """
    code = """
    const heads = ["setting", "a", "b", "c"];
    const rows = [["model.seed", "1", "2", "1"], ["lr_schedule.lr", "0.1", "0.1", "0.2"]];
    const groups = ui.seedGroups({ settings: { heads, rows } }, ["a", "b", "c"]);
    const x = (y, apart) => y.map((_, at) => apart * at);
    const line = (name, y, apart = 1) => ({ name, label: `gpt-seed-${name}`, x: x(y, apart), y });
    const drawn = (b) => ui.seedBands([line("c", [5]), line("a", [1, 2, 4]), b], groups);
    return [groups, drawn(line("b", [3, NaN, 6])), drawn(line("b", [3, 6], 1.5))];
    """
    groups, lines, later = in_node("compare/compare", code, tmp_path)
    assert groups == [["a", "b"]] and [line["name"] for line in lines] == ["c", "a"]
    band = {key: lines[1][key] for key in ("x", "y", "low", "high", "label", "note")}
    words = {"label": "2 seeds of gpt", "note": "mean and range"}
    assert band == {"x": [0, 2], "y": [2, 5], "low": [1, 4], "high": [3, 6], **words}
    # b has no point at 1: it is 5 between its points, and at 2 it has ended.
    assert (later[1]["x"], later[1]["y"]) == ([0, 1], [2, 3.5])


def test_the_runs_of_a_sweep_are_together_below_its_row(tmp_path: Path) -> None:
    """The runs of a sweep are listed at the place of the first one, or folded; its row names the best run.
    A sweep of which one run is listed has no row.
    """
    code = """
    const run = (name, sweep, loss, more = {}) => ({ name, labels: sweep ? { sweep } : {}, loss,
      validation_loss: null, words: { loss: String(loss) }, state: "SUCCEEDED", ...more });
    const runs = [run("a", "", 1), run("s1", "s", 3), run("b", "t", 2), run("s2", "s", 2),
      run("s3", "s", null, { state: "FAILED" })];
    const names = (entries) => entries.map(({ run, sweep }) => (run ? run.name : `sweep ${sweep}`));
    const own = runs.filter((run) => run.labels.sweep === "s");
    return [names(ui.sweepEntries(runs, () => false)), names(ui.sweepEntries(runs, () => true)),
      ui.sweepWords(own), ui.bestFirst(own).map((run) => run.name)];
    """
    unfolded, folded, words, best = in_node("runs/runs_sweeps", code, tmp_path)
    assert unfolded == ["a", "sweep s", "s1", "s2", "s3", "b"] and folded == ["a", "sweep s", "b"]
    assert words == "3 runs: 2 SUCCEEDED, 1 FAILED; best loss 2 (s2)" and best == ["s2", "s1"]


def test_names_at_the_ends_of_lines_do_not_cover_each_other(tmp_path: Path) -> None:
    """Twelve lines that end at one height, and two at an edge, keep their order at a distance."""
    code = """
    const apart = (places) => ui.spreadApart(places, 11, 26, 170);
    const names = ["gpt-125m-2xdp-second-try-with-half-the-learning-rate", "gpt-a"];
    return [apart(Array(12).fill(100)), apart([168, 30, 170]), names.map((name) => ui.shortName(name, 15))];
    """
    equal, edge, names = in_node("charts/chart_ends", code, tmp_path)
    gaps = [below - above for above, below in itertools.pairwise(sorted(equal))]
    assert min(gaps) >= 11 - 1e-9 and min(equal) >= 26 and max(equal) <= 170
    assert edge == [159, 30, 170] and names == ["gpt-125\N{HORIZONTAL ELLIPSIS}ng-rate", "gpt-a"]


def test_flops_and_cost_are_axes_of_a_comparison(tmp_path: Path) -> None:
    """A comparison can have FLOPs or cost as its axis, computed from tokens and time; without a price, a run
    has no curve over cost.
    """
    code = f"""{COMPARED}
    const scales = {{ a: {{ flops_per_token: 6, money_per_second: 0.5, currency: "USD" }} }};
    const shown = (axis, scales) => ({{ axis, smoothing: 0, all: false, scales }});
    const spec = (...given) => ui.comparedSpecs(["a"], curves, shown(...given))[0][1];
    const x = (axis) => [spec(axis, scales).xName, spec(axis, scales).lines[0].x];
    return [x("flops"), x("cost"), spec("cost", {{}}).lines.length];
    """
    flops, cost, without = in_node("compare/compare", code, tmp_path)
    assert flops == ["FLOPs", [600, 660, 720]] and cost == ["cost, USD", [0, 5, 10]] and without == 0


def test_a_comparison_is_copied_as_a_table(tmp_path: Path) -> None:
    """The table marks the best values and shows distances to the baseline, and is copied in three formats
    with their special characters escaped.
    """
    code = """
    const rows = [["loss", "2.0", "2.5"], ["a_b|c", "50 %", "1,000"]];
    const heads = ["result", "one", "two"], values = [[2, 2.5], [null, null]], better = ["low", ""];
    const how = { baseline: "one", different: false };
    const table = ui.comparedResults({ figures: { heads, rows, values, better } }, ["one", "two"], how);
    const texts = ui.TABLE_FORMATS.map((format) => ui.tablesText(format, [table]));
    return [table.rows[0].cells.slice(1), ...texts];
    """
    cells, markdown, comma, latex = in_node("compare/compare_tables", code, tmp_path)
    assert [(cell["className"], cell["note"], cell["tone"]) for cell in cells] == [
        ("nbt-best", "", ""),
        ("", "+25.0 %", "nbt-worse"),
    ]
    assert markdown.splitlines()[2:] == ["| loss | 2.0 | 2.5 (+25.0 %) |", "| a_b\\|c | 50 % | 1,000 |"]
    assert comma.splitlines() == ["result,one,two", "loss,2.0,2.5 (+25.0 %)", 'a_b|c,50 %,"1,000"']
    assert r"a\_b|c & 50 \% & 1,000 \\" in latex.splitlines()


def test_in_a_notebook_tensorboard_opens_with_the_run(tmp_path: Path) -> None:
    """In a notebook, TensorBoard is opened with the parameter ?run=, and the run's name is the one that
    TensorBoard uses.
    """
    code = """
    globalThis.window = { open: (address) => (window.opened = address) };
    ui.notebookHost({ url: (path) => `/user/x/nbtrain/${path}` }).openTensorBoard("gpt-2.7b");
    return window.opened;
    """
    assert in_node("host/host", code, tmp_path) == "/user/x/nbtrain/tensorboard/?run=gpt-2.7b"


PAGES = """
const server = { asked: 0, call: async (path) => {
  server.asked += 1;
  const headline = { fits: `${server.asked}` };
  return { yaml: `own ${server.asked}`, parent: null, differences: [], headline };
} };
const run = { name: "gpt", job: "", server }, page = new ui.PAGE(run);
const draw = async (job, kept = job) => {
  page.draw({ job: job && { job_id: job } }, kept && { job_id: kept, yaml: `kept by ${kept}` });
  await new Promise((done) => setTimeout(done));
};
"""


def test_the_configuration_is_that_of_the_job_that_is_shown(tmp_path: Path) -> None:
    """The Config tab shows the configuration of the selected job: for the newest job the run's, which is read
    again after a resume; for an older job its copy.
    """
    code = (
        PAGES.replace("PAGE", "Config")
        + """
    const seen = [];
    const see = () => seen.push(page.yaml.textContent);
    page.opened();
    await draw("j1"), see();
    await draw("j1"), see();
    run.job = "j0";
    await draw("j1"), see();
    await draw("j1", "j0"), see();
    run.job = "";
    await draw("j1"), see();
    await draw("j2", "j1"), see();
    return seen;
    """
    )
    shown = ["own 1", "own 1", "own 1", "kept by j0", "own 2", "own 3"]
    assert in_node("run_tabs/config", code, tmp_path) == shown


def test_the_plan_is_read_again_after_a_resume(tmp_path: Path) -> None:
    code = (
        PAGES.replace("PAGE", "Plan")
        + """
    page.opened();
    const seen = [];
    for (const job of ["", "", "j1", "j1", "j2"]) {
      await draw(job);
      seen.push(page.node.children[0].children[0].children[1].textContent);
    }
    return seen;
    """
    )
    assert in_node("run_tabs/plan", code, tmp_path) == ["1", "1", "2", "2", "3"]


METRICS = """
const later = globalThis.setTimeout, rest = () => new Promise((done) => later(done));
globalThis.setTimeout = (act) => later(act);
const asked = [], value = { tags: [], charts: [], series: {}, marks: [], reading: 1 };
let answer, fail;
const metrics = (name, { from }) => {
  asked.push(from ?? "all");
  return new Promise((...both) => ([answer, fail] = both));
};
const page = new ui.Metrics({ name: "gpt", server: { metrics } });
const draw = () => page.draw({ state: "SUCCEEDED", active: false, job: { job_id: "j1" } });
Object.assign(page.axis, { value: "step" });
Object.assign(page.find, { value: "" });
draw();
"""


def test_a_zoom_while_curves_are_read_is_read_after_them(tmp_path: Path) -> None:
    """If the user zooms in and out again while curves are being read, the whole run is read once more
    afterwards.
    """
    code = (
        METRICS
        + """
    answer(value), await rest(), draw();
    page.group.zoom([5, 9]), await rest();
    page.group.zoom(null), await rest();
    const before = asked.length;
    answer(value), await rest(), answer(value), await rest(), draw();
    return [before, asked];
    """
    )
    assert in_node("run_tabs/metrics", code, tmp_path) == [2, ["all", 5, "all"]]


def test_curves_of_an_ended_run_that_were_refused_are_asked_for_again(tmp_path: Path) -> None:
    code = (
        METRICS
        + """
    fail(new Error("HTTP 503")), await rest();
    draw(), answer(value), await rest();
    draw();
    return [asked, page.note.textContent];
    """
    )
    assert in_node("run_tabs/metrics", code, tmp_path) == [["all", "all"], "No curves yet."]


@pytest.mark.parametrize(
    "cells",
    [
        ["", "999", "1,234", "12,345,678"],
        ["900.0 MiB", "1.2 GiB", "1.3 GiB of 8.0 GiB", "1.0 TiB"],
        ["0 B/s", "512.0 KiB/s", "2.0 MiB/s"],
        ["rank 2", "rank 10"],
    ],
)
def test_a_table_is_sorted_by_what_its_figures_say(tmp_path: Path, cells: list[str]) -> None:
    code = f"""
    const table = new ui.DataTable("replicas");
    table.rows = {json.dumps(cells[::-1])}.map((cell) => ({{ cells: [cell] }}));
    table.order = {{ column: 0, direction: 1 }};
    return table.sorted().map((row) => row.cells[0]);
    """
    assert in_node("elements/table", code, tmp_path) == cells


def test_a_log_is_read_once_however_quickly_it_is_chosen(tmp_path: Path) -> None:
    """If rank 1 and then rank 0 are selected before the first response, each log is still read only once."""
    code = """
    const answers = [], view = { snap: { ranks: [] } };
    const server = { call: (path) => new Promise((answer) => answers.push([path.split("?")[1], answer])) };
    const page = new ui.Logs({ name: "gpt", job: "", server, view, redraw() {} });
    const rest = () => new Promise((done) => setTimeout(done));
    const part = { text: "step 1\\n", end_bytes: 7 };
    page.readTraceback = () => {};
    const draw = (rank) => {
      page.choice.value = JSON.stringify([rank, null]);
      page.draw({ ranks: [{ rank: 0 }, { rank: 1 }] }, null);
    };
    draw("0"), page.forget(), draw("1"), page.forget(), draw("0");
    answers[0][1](part), await rest(), draw("0");
    answers[1][1](part), await rest(), draw("0");
    answers.slice(2).forEach(([, answer]) => answer(part));
    await rest();
    return [answers.map(([words]) => words), page.lines];
    """
    assert in_node("run_tabs/logs", code, tmp_path) == [["rank=0", "rank=1", "rank=0"], ["step 1"]]


LOGS = """
const server = { call: async () => ({ text: "", start_bytes: 0, end_bytes: 0 }) };
const run = { name: "gpt", job: "", server, redraw() {} };
const page = new ui.Logs(run), snap = { name: "gpt", ranks: [], log: { lines: ["a", "b"], source: "" } };
run.view = { snap };
page.readTraceback = () => {};
const draw = (...logs) => {
  const named = logs.map(([rank, attempt]) => [rank, attempt, `${rank}.${attempt}`]);
  page.draw(snap, { job_id: "j1", logs: named });
  return page.choice.value;
};
"""


def test_a_log_that_is_followed_is_that_of_the_newest_attempt(tmp_path: Path) -> None:
    """A log that is followed switches to the newest attempt after a restart; an older attempt that the user
    selected and a log that is not followed stay.
    """
    code = (
        LOGS
        + """
    const seen = [], before = [["0", 0], ["1", 0]], after = [["0", 1], ["1", 1], ["0", 0], ["1", 0]];
    page.choice.value = '["1",0]';
    seen.push(draw(...before), draw(...after));
    page.choice.value = '["1",0]';
    seen.push(draw(...after), draw(["0", 2], ["1", 2], ...after));
    page.choice.value = '["1",2]';
    page.follow.input.checked = false;
    seen.push(draw(["0", 3], ["1", 3], ["0", 2], ["1", 2]));
    return seen.map((value) => JSON.parse(value).join("."));
    """
    )
    assert in_node("run_tabs/logs", code, tmp_path) == ["1.0", "1.1", "1.0", "1.0", "1.2"]


def test_a_log_is_not_read_again_when_the_job_page_arrives(tmp_path: Path) -> None:
    code = (
        LOGS
        + """
    const asked = [];
    server.call = async (path) => {
      asked.push(path.split("?")[1]);
      return { text: "step 1\\n", start_bytes: 0, end_bytes: 7 };
    };
    const rest = () => new Promise((done) => setTimeout(done));
    Object.assign(snap, { ranks: [{ rank: 0, attempt: 1 }], job: { job_id: "j1" } });
    page.drawChoice = (logs) => (page.choice.value = logs[0][0]);
    page.draw(snap, null), await rest();
    draw(["0", 1], ["0", 0]), await rest();
    return [asked, page.lines];
    """
    )
    asked = ["rank=0&attempt=1&job=j1", "rank=0&attempt=1&job=j1&offset=7"]
    assert in_node("run_tabs/logs", code, tmp_path) == [asked, ["step 1", "step 1"]]


def test_a_log_that_is_not_in_the_menu_is_opened_and_stays(tmp_path: Path) -> None:
    code = (
        LOGS
        + """
    page.open("300", 2);
    const seen = [draw(["0", 2]), draw(["0", 2])];
    run.job = "j0";
    return [...seen, page.choice.options.map((option) => option.textContent)];
    """
    )
    value = '["300",2]'
    assert in_node("run_tabs/logs", code, tmp_path) == [value, value, ["0.2", "rank 300, attempt 2"]]


def test_lines_of_the_kernel_are_not_added_to_those_of_the_file(tmp_path: Path) -> None:
    """After the server has stopped responding, lines from the kernel are not appended to lines from the file.
    Of a progress bar, only the last state counts.
    """
    code = (
        LOGS
        + r"""
    const seen = [];
    server.call = async () => ({ text: "0%\r50%\r100%\r\na\nb", start_bytes: 0, end_bytes: 15 });
    const rest = () => new Promise((done) => setTimeout(done));
    page.choice.value = '["0",0]';
    draw(["0", 0]), await rest(), seen.push(page.text);
    run.server = null, draw(["0", 0]), seen.push(page.text);
    run.server = server, draw(["0", 0]), await rest();
    return [...seen, page.text];
    """
    )
    file = "100%\na\nb"
    assert in_node("run_tabs/logs", code, tmp_path) == [file, "a\nb", file]


@pytest.mark.parametrize(
    ("first", "pointer", "words"),
    [
        (0, 240, "step 240: 1.000 / 2.000"),
        (0, 901, "step 900: \u2013 / 2.000"),
        (1, 901, "step 900: 2.000 / \u2013"),
        (0, 504, "step 500: 1.000 / 2.000"),
    ],
)
def test_runs_of_other_lengths_are_read_at_one_step(
    tmp_path: Path, first: int, pointer: int, words: str
) -> None:
    """For runs of different lengths, the pointer shows the values at one step, and a dash for a run that has
    ended, in any order of the runs.
    """
    code = f"""
    const x = (end) => Array.from({{ length: end / 10 + 1 }}, (_, at) => 10 * at);
    const lines = [500, 1000].map((end, at) => ({{ x: x(end), y: x(end).map(() => at + 1) }}));
    if ({first}) lines.reverse();
    const chart = new ui.Chart(100);
    chart.spec = {{ lines, xName: "step", xForm: "whole", yForm: "number" }};
    const same = (one) => one;
    return chart.hover({pointer}, {{ X: same, Y: same, valueAt: same, width: 9 }}, []);
    """
    assert in_node("charts/chart", code, tmp_path) == words


def test_a_number_under_the_pointer_has_no_exponent(tmp_path: Path) -> None:
    code = """
    const number = [0, 1.5, 999.96, 9999.4, 9999.7, 12345.6].map((value) => ui.readLabel("number", value));
    return [...number, ...[9999.97, 99999.7].map((value) => ui.readLabel("decimals", value))];
    """
    found = ["0.000", "1.500", "1,000", "9,999", "10,000", "12,346", "10,000", "100,000"]
    assert in_node("charts/numbers", code, tmp_path) == found
