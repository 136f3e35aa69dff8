"""The form without a front end: its controls drive the draft, and its button does what its line does."""

import html
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nbtrain.jobs.preflight
import nbtrain.jobs.submit
from nbtrain.base.errors import SubmitError
from nbtrain.base.rundir import RunDir
from nbtrain.lab.widgets import mime
from nbtrain.lab.widgets.launcher import LaunchForm
from tests.lab.widgets.fake_run import FakeJob


@pytest.fixture
def form(workspace: Path) -> Iterator[LaunchForm]:
    form = LaunchForm("gpt-tiny")
    yield form
    form.close()


def control(form: LaunchForm, key: str) -> Any:
    return form.controls[key][1]


def test_form_has_the_pages_of_the_schema(form: LaunchForm) -> None:
    """Distributed, model, training, parallel, data, evaluation and logging; the plan is there at once."""
    assert form.pages.titles == (
        "Distributed",
        "Model",
        "Training",
        "Parallel",
        "Data",
        "Evaluation",
        "Logging",
    )
    assert "Plan of gpt-tiny" in form.side.value
    assert "nb.submit(&quot;gpt-tiny&quot;)" in form.line.value


def test_broken_rule_locks_the_button_until_it_is_fixed(form: LaunchForm) -> None:
    """Message, difference and line follow each change."""
    control(form, "batch.micro_batch_size").value = "5"
    assert "must be a multiple of micro_batch_size(5)" in form.side.value
    assert form.submit_button.disabled
    control(form, "batch.micro_batch_size").value = "4"
    assert "must be a multiple" not in form.side.value
    assert "<s>8</s></td><td><strong>4</strong>" in form.side.value
    assert "batch.micro_batch_size&quot;: 4" in form.line.value
    assert not form.submit_button.disabled
    assert "nbf-changed" in control(form, "batch.micro_batch_size")._dom_classes


def test_unreadable_value_locks_the_button(form: LaunchForm) -> None:
    """Text that is no YAML is reported beside the form, and the button does not submit the previous value."""
    control(form, "batch.micro_batch_size").value = "[5"
    assert "not YAML" in form.answer.value
    assert form.submit_button.disabled
    control(form, "model.compile").value = True
    assert form.submit_button.disabled
    control(form, "batch.micro_batch_size").value = "8"
    assert form.answer.value == ""
    assert not form.submit_button.disabled


def test_another_yaml_fills_the_form_and_reset_takes_changes_back(form: LaunchForm) -> None:
    """Every control shows the new run; no change of the old one is left."""
    control(form, "batch.micro_batch_size").value = "4"
    form.choice.value = "gpt-125m-4xdp"
    assert form.draft.overrides == {}
    assert form.name.value == "gpt-125m-4xdp"
    assert control(form, "parallel.data_parallel_size").value == "4"
    assert control(form, "resources.device").value == "gpu"
    control(form, "batch.micro_batch_size").value = "8"
    form.reset_button.click()
    assert form.draft.overrides == {}
    assert control(form, "batch.micro_batch_size").value == "16"


def test_file_of_ones_own(form: LaunchForm, workspace: Path, repository: Path) -> None:
    """A path relative to the workspace opens; a path that does not exist is reported and changes nothing."""
    shutil.copytree(repository / "examples" / "megatron-gpt" / "training", workspace / "mine")
    form.path.value = "mine/gpt-125m.yaml"
    assert form.draft.run == "mine/gpt-125m.yaml"
    assert form.name.value == "gpt-125m"
    form.path.value = "nowhere.yaml"
    assert "nowhere.yaml: no such run YAML" in form.answer.value
    assert form.draft.run == "mine/gpt-125m.yaml"


def test_name_is_a_field_too(form: LaunchForm) -> None:
    """A name that may not become a folder is refused."""
    form.name.value = "My Run"
    assert form.submit_button.disabled
    form.name.value = "my-run"
    assert "{&quot;name&quot;: &quot;my-run&quot;}" in form.line.value


def test_submit_gives_the_draft_to_jobs_and_shows_the_panel(
    form: LaunchForm, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The button submits the configuration of the line, and the run's panel appears below the form."""
    given = []

    def submit(config: Any) -> Any:
        given.append(config)
        job = FakeJob(RunDir.named(config.name), steps=10)
        job.finish("CANCELLED", "only a test")
        return job.job

    monkeypatch.setattr(nbtrain.jobs.submit, "submit", submit)
    control(form, "batch.max_steps").value = "3"
    form.submit_button.click()
    assert [config.batch.max_steps for config in given] == [3]
    assert form.view.name == "gpt-tiny"
    (panel,) = form.result.children
    assert panel.snap["name"] == "gpt-tiny"
    assert "nb.open_run('gpt-tiny')" in html.unescape(form.answer.value)


def test_refusal_is_shown_and_not_raised(form: LaunchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of SubmitError stand under the form, as text; the button can be pressed again."""

    def refuse(config: Any) -> None:
        raise SubmitError("output/gpt-tiny has succeeded <already>.")

    monkeypatch.setattr(nbtrain.jobs.submit, "submit", refuse)
    form.submit_button.click()
    assert "output/gpt-tiny has succeeded &lt;already&gt;." in form.answer.value
    assert form.result.children == ()
    assert not form.submit_button.disabled


def test_static_picture_where_nobody_watches(form: LaunchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """papermill gets plan and line as HTML; a live front end gets the widget with it."""
    control(form, "batch.micro_batch_size").value = "4"
    bundle = form._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "Plan of gpt-tiny" in bundle["text/html"]
    assert bundle["text/plain"] == 'nb.submit("gpt-tiny", {"batch.micro_batch_size": 4})'
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    assert form._repr_mimebundle_()[mime.WIDGET_MIME]["model_id"] == form.model_id


def test_the_form_opens_with_overrides():
    """They stand in the fields and in the line, so that the button submits what the line says."""
    form = LaunchForm("gpt-tiny", "name=trial batch.max_steps=3 'data.sources=[{kind: mock}]'")
    assert form.name.value == "trial"
    assert control(form, "batch.max_steps").value == "3"
    (source,) = form.draft.overrides["data.sources"]
    assert (source["kind"], source["num_documents"], source["seed"]) == ("mock", 1000, 1234)
    assert form.assessment.config.name == "trial"
    assert form.assessment.config.train_steps == 3
