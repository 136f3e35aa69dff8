"""What views ask for and would draw, in node: each in a tenth of a second."""

from pathlib import Path

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
    """The list of charts names all curves of a run."""
    code = f"{COMPARED} return specs('step').map(([tag]) => tag);"
    assert in_node("compare", code, tmp_path) == ["loss", "validation_loss"]


def test_all_curves_of_a_compared_run_begin_at_one_time(tmp_path: Path) -> None:
    """A first validation after 20 seconds stands there, not at 0."""
    code = f"{COMPARED} return specs('time').map(([, spec]) => spec.lines[0].x);"
    assert in_node("compare", code, tmp_path) == [[0, 10, 20], [20]]


def test_in_a_notebook_tensorboard_opens_with_the_run(tmp_path: Path) -> None:
    """By the page's own ?run=, which knows what TensorBoard calls the run."""
    code = """
    globalThis.window = { open: (address) => (window.opened = address) };
    ui.notebookHost({ url: (path) => `/user/x/nbtrain/${path}` }).openTensorBoard("gpt-2.7b");
    return window.opened;
    """
    assert in_node("host", code, tmp_path) == "/user/x/nbtrain/tensorboard/?run=gpt-2.7b"
