"""The launch form's widget without a front end: the next cell receives the form's values, and the kernel
answers requests.
"""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.lab.widgets import launcher, mime
from nbtrain.lab.widgets.launcher import LaunchForm


@pytest.fixture
def form(workspace: Path) -> Iterator[LaunchForm]:
    form = LaunchForm("gpt-tiny")
    yield form
    form.close()


def hold(form: LaunchForm, **changes: Any) -> None:
    """Simulate a change that the user makes on the page."""
    held = {**form.held, **changes, "seq": form.held["seq"] + 1}
    form._on_message(form, {"kind": "hold", "held": held}, [])


def test_what_the_page_holds_is_the_next_cells(form: LaunchForm) -> None:
    """Typed values, mode and YAML are available in the next cell, without any response of the kernel to the
    page.
    """
    sent: list[Any] = []
    form.send_state = sent.append
    assert form.config.batch.micro_batch_size == 8
    hold(form, typed={"batch.micro_batch_size": "4", "name": "mine"}, mode="twin")
    assert (form.config.batch.micro_batch_size, form.config.name, form.mode) == (4, "mine", "twin")
    assert (form.held["seq"], sent) == (1, [])
    assert form.line == 'nb.submit("gpt-tiny", {"batch.micro_batch_size": 4, "name": "mine"})'
    hold(form, yaml="gpt-125m", typed={})
    assert form.config.model.num_layers == 12


def test_the_overrides_of_the_start_can_be_left_out(workspace: Path) -> None:
    """The overrides with which the form was opened are in the fields and in the generated line, and the user
    may remove them.
    """
    form = LaunchForm("gpt-tiny", "name=trial batch.max_steps=3 'data.sources=[{kind: mock}]'")
    assert (form.config.name, form.config.train_steps) == ("trial", 3)
    assert form.start["overrides"]["batch.max_steps"] == 3
    (source,) = form.draft.overrides["data.sources"]
    assert source == {"kind": "mock"}
    hold(form, given=False)
    assert form.config.name == "gpt-tiny"
    form.close()


def test_a_value_that_is_none_is_an_error_of_the_next_cell(form: LaunchForm) -> None:
    """The next cell raises one error with all invalid values, as in `nbtrain check`; no earlier value is used
    silently.
    """
    hold(form, typed={"batch.micro_batch_size": "[5", "model.num_layers": "four"})
    with pytest.raises(ConfigError) as error:
        _ = form.config
    first, second = str(error.value).splitlines()
    assert first.startswith("batch.micro_batch_size = '[5': not YAML: ")
    assert second.endswith("model.num_layers = four: must be a whole number.")
    hold(form, typed={"batch.micro_batch_size": "5"})
    with pytest.raises(ConfigError, match="must be a multiple of micro_batch_size"):
        _ = form.config


def test_a_yaml_that_cannot_be_read_is_an_error_of_the_next_cell(form: LaunchForm) -> None:
    """If the YAML has become unreadable since the page read it, the next cell raises an error."""
    hold(form, yaml="nowhere.yaml")
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such run YAML"):
        _ = form.config


def test_a_field_is_set_from_a_cell(form: LaunchForm) -> None:
    """A cell can set a field; the page detects this by a number that increases."""
    form.set("batch.max_steps", 7)
    form.set("model.compile", True)
    assert form.held["typed"] == {"batch.max_steps": "7", "model.compile": "true"}
    assert (form.held["seq"], form.config.batch.max_steps) == (2, 7)
    with pytest.raises(ConfigError, match=r"the form has no field 'batch\.steps'\. Nearest: batch\."):
        form.set("batch.steps", 7)


def test_mode_is_one_of_two(workspace: Path) -> None:
    with pytest.raises(ConfigError, match='mode = \'perf\' must be "full" or "twin"'):
        LaunchForm("gpt-tiny", mode="perf")


def test_without_a_server_the_kernel_answers(form: LaunchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, the kernel gives the same answers to numbered requests, and a rejected request has
    its message.
    """
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(form, "send", sent.append)
    form._on_message(
        form, {"kind": "ask", "id": 1, "path": "form/assess", "request": {"yaml": "gpt-125m"}}, []
    )
    form._on_message(form, {"kind": "ask", "id": 2, "path": "form", "request": {"yaml": "gpt-nothing"}}, [])
    form._on_message(form, {"kind": "other"}, [])
    assert [one["id"] for one in sent] == [1, 2]
    assert sent[0]["value"]["line"] == 'nb.submit("gpt-125m")'
    assert "no such run YAML" in sent[1]["error"]


def test_static_picture_where_nobody_watches(form: LaunchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """With papermill, the form is shown as HTML with its plan and line of code; a live front end also shows
    the widget.
    """
    hold(form, typed={"batch.micro_batch_size": "4"})
    bundle = form._repr_mimebundle_()[0]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "Plan of gpt-tiny" in bundle["text/html"]
    assert ">8</td>" in bundle["text/html"]
    assert bundle["text/plain"] == 'nb.submit("gpt-tiny", {"batch.micro_batch_size": 4})'
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    monkeypatch.setattr(launcher, "is_watched", lambda: True)
    live = LaunchForm("gpt-tiny")
    assert live.key == live.model_id == live._repr_mimebundle_()[0][mime.WIDGET_MIME]["model_id"]
    live.close()


def test_the_rescue_knows_what_the_form_was_opened_with(
    form: LaunchForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second output, only for a live front end, can restore the form as it was opened; its values are
    escaped in an attribute.
    """
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    form._ipython_display_()
    assert len(shown) == 1
    monkeypatch.setattr(launcher, "is_watched", lambda: True)
    form._ipython_display_()
    script = shown[2]["text/html"]
    attribute = script.partition('data-form="')[2].partition('"')[0]
    assert json.loads(html.unescape(attribute)) == {"id": form.form_id, "start": form.start}
    assert "nbtrain/static/form.js" in script


def test_where_nobody_watches_there_is_no_widget(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a live front end, no widget is created: papermill would save its state, and the saved HTML
    would load the widget from a CDN.
    """
    opened = []
    monkeypatch.setattr(launcher.anywidget.AnyWidget, "open", lambda self: opened.append(self))
    LaunchForm("gpt-tiny").close()
    assert opened == []
    monkeypatch.setattr(launcher, "is_watched", lambda: True)
    LaunchForm("gpt-tiny").close()
    assert len(opened) == 1


def test_the_script_is_one_module() -> None:
    """The script is a single module that exports the functions that anywidget and a restored form call."""
    text = launcher.form_script()
    assert "import {" not in text
    assert "export function rescueForm(" in text and text.count("export default") == 1
