"""A run that is edited in the form: its fields, changes, assessment, and the equivalent line of code."""

from pathlib import Path

import pytest

import nbtrain.jobs.checks.preflight
from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.lab.form.draft import Draft
from nbtrain.lab.form.fields import GROUPS, NOT_IN_GROUPS, Field, every_field, fields_of, run_yamls


def field(key: str) -> Field:
    return next(one for one in fields_of(key.split(".")[0]) if one.key == key)


def test_every_field_of_the_schema_stands_on_one_page() -> None:
    """Each field of the schema is on exactly one page, and either has a control or is part of a field that
    has one.
    """
    sections = [section for group in GROUPS.values() for section in group]
    top = {key for key in field_keys() if "." not in key}
    assert sorted(sections) == sorted(top - set(NOT_IN_GROUPS))
    shown = [one.key for section in sections for one in fields_of(section)]
    assert len(shown) == len(set(shown))
    leaves = {key for key, inner in field_keys().items() if inner is None and "." in key}
    covered = {leaf for leaf in leaves if any(leaf == key or leaf.startswith(f"{key}.") for key in shown)}
    assert leaves == covered


def test_every_field_has_a_description() -> None:
    """Each field has a description from the schema, which is used as its tooltip."""
    assert [
        one.key
        for group in GROUPS.values()
        for section in group
        for one in fields_of(section)
        if not one.description
    ] == []


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("model.compile", "switch"),
        ("precision.dtype", "choice"),
        ("data.split", "text"),
        ("resources.gpu_type", "text"),
        ("batch.train_tokens", "yaml"),
        ("batch.rampup", "section"),
        ("batch.rampup.ramp_samples", "yaml"),
        ("data.sources", "yaml"),
        ("parallel.activation_checkpointing.granularity", "choice"),
    ],
)
def test_kind_of_control(key: str, kind: str) -> None:
    """The control of a field is a switch for booleans and sections, a list for fixed choices, or a field for
    text or YAML.
    """
    assert field(key).kind == kind


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("evaluation.tasks", "Keys, with their defaults: task (required), path (required), limit (null)."),
    ],
)
def test_a_text_that_has_keys_names_them(key: str, words: str) -> None:
    """A field for YAML lists the keys that are valid in it."""
    assert every_field()[key].description.endswith(f" {words}")


def test_every_field_comes_back_as_it_was() -> None:
    """Typing the value that a field shows changes nothing, for every field of a small run and of the largest
    run.
    """
    for run in ("gpt-tiny", "gpt-175b"):
        draft = Draft(run)
        for group in GROUPS.values():
            for section in group:
                for one in fields_of(section):
                    if one.kind in ("text", "yaml"):
                        draft.set_text(one, draft.text(one))
        assert draft.overrides == {}


def test_changes_become_overrides_and_the_line_says_them() -> None:
    """Changes become overrides, and the line of code has the same effect."""
    draft = Draft("gpt-tiny")
    assert draft.line == 'nb.submit("gpt-tiny")'
    draft.set_text(field("batch.train_tokens"), "2.5e6")
    draft.set_text(field("data.split"), "90,5,5")
    draft.set("model.compile", True)
    assert draft.line == (
        'nb.submit("gpt-tiny", {"batch.train_tokens": 2500000.0, "data.split": "90,5,5", "model.compile": '
        "True})"
    )
    draft.set("data.sources", [{"kind": "wiki", "mirror": "http://me:s3cret@host"}])
    assert draft.line.endswith('"data.sources": [{"kind": "wiki", "mirror": "http://***@host"}]})')
    draft.set("data.sources", draft.base_value("data.sources"))
    assert draft.assess().config == load("gpt-tiny", draft.overrides, check=False)


def test_the_yamls_value_takes_a_change_back() -> None:
    """Setting a field back to the YAML's value removes its override."""
    draft = Draft("gpt-tiny")
    draft.set_text(field("batch.micro_batch_size"), "16")
    draft.set_text(field("batch.micro_batch_size"), "8")
    assert draft.overrides == {}
    draft.set_text(field("resources.gpu_type"), "A100-40GB")
    draft.set_text(field("resources.gpu_type"), "")
    assert draft.overrides == {}


def test_what_is_no_yaml_is_refused_and_changes_nothing() -> None:
    """Invalid YAML in a field is rejected with the field and the typed text, and the run does not change."""
    draft = Draft("gpt-tiny")
    with pytest.raises(ConfigError, match=r"batch.micro_batch_size = '\[5': not YAML: "):
        draft.set_text(field("batch.micro_batch_size"), "[5")
    assert draft.overrides == {}


def test_assessment_of_a_broken_rule() -> None:
    """A broken rule is reported as in `nbtrain check`; in that case, nothing is planned and the machine is
    not inspected.
    """
    draft = Draft("gpt-tiny")
    draft.set("batch.micro_batch_size", 5)
    found = draft.assess()
    assert not found.ready
    assert found.plan is None
    (problem,) = found.problems
    assert (
        "must be a multiple of micro_batch_size(5) * data_parallel_size(1) = 5; nearest: 5, 10."
        in problem.message
    )


def test_assessment_of_a_wrong_type() -> None:
    """If a value has the wrong type, there is no configuration, only problems."""
    draft = Draft("gpt-tiny")
    draft.set("model.num_layers", "four")
    found = draft.assess()
    assert found.config is None
    assert not found.ready
    assert found.problems[0].key == "model.num_layers"


def test_assessment_tells_what_the_machine_lacks(workspace: Path) -> None:
    """If its data is not prepared, a run has a plan but is not ready."""
    found = Draft("gpt-tiny").assess()
    assert found.problems == []
    assert found.plan.parameters.total > 3e6
    assert found.shortages
    assert not found.ready


def test_ready_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that passes all checks and the preflight is ready."""
    monkeypatch.setattr(nbtrain.jobs.checks.preflight, "preflight", lambda config: [])
    assert Draft("gpt-tiny").assess().ready


def test_run_yamls_come_with_the_demo_first() -> None:
    """All example YAMLs are offered; the demo comes first."""
    names = run_yamls()
    assert names[0] == "gpt-tiny"
    assert {"gpt-125m", "gpt-13b-4xdp-4xpp-4xtp", "gpt-175b"} < set(names)


def test_unknown_yaml_is_refused() -> None:
    """An unknown YAML is rejected, and the message lists the existing names."""
    with pytest.raises(ConfigError, match="no such run YAML"):
        Draft("gpt-tinny")


@pytest.mark.parametrize("text", ["1e999", ".inf", "-.inf", ".nan"])
def test_a_number_that_is_not_finite_is_a_problem_and_no_code(text: str) -> None:
    """A number that is not finite is a problem: Python has no literal for it, so the generated line would not
    run.
    """
    draft = Draft("gpt-tiny")
    draft.type({"lr_schedule.lr": text, "batch.max_steps": "7"})
    assert str(draft.assess().problems[0]) == f"lr_schedule.lr = '{text}': must be a finite number."
    assert draft.line == 'nb.submit("gpt-tiny", {"batch.max_steps": 7})'


def test_names_with_dots_are_typed_as_a_mapping() -> None:
    """Keys that contain dots, such as node labels, are typed as a mapping, and the generated call keeps them
    unchanged.
    """
    key, names = "backend.kubernetes.node_selector", {"nvidia.com/gpu.product": "A100"}
    draft = Draft("gpt-tiny")
    draft.set_text(field(key), "{nvidia.com/gpu.product: A100}")
    assert draft.config.backend.kubernetes.node_selector == names
    assert draft.line == f'nb.submit("gpt-tiny", {{"{key}": {{"nvidia.com/gpu.product": "A100"}}}})'
    assert Draft("gpt-tiny", draft.overrides).changes == {key: names}


MODERN_ADAMW = {"recipe": "modern", "optimizer.type": "AdamW"}


@pytest.mark.parametrize(
    ("run", "typed", "overrides"),
    [
        ("gpt3-tiny", {"recipe": "modern"}, None),
        ("gpt3-tiny", MODERN_ADAMW, None),
        ("gpt3-tiny", dict(reversed(MODERN_ADAMW.items())), MODERN_ADAMW),
        ("gpt-tiny", {"recipe": "gpt3", "optimizer.type": "Muon"}, None),
        ("gpt-tiny", {"recipe": "gpt3", "model.architecture": "qwen3"}, None),
        ("gpt3-tiny", {"recipe": "modern", "model.architecture": "gpt3"}, None),
        ("gpt3-tiny", {"recipe": "modern", "model.architecture": "llama"}, None),
        # The recipe's amount belongs to its schedule, and another amount replaces it.
        ("gpt3-tiny", {"recipe": "modern", "lr_schedule.lr_decay_style": "linear"}, None),
        ("gpt3-tiny", {"lr_schedule.lr_wsd_decay_steps": 50, "recipe": "modern"}, None),
        ("gpt3-tiny", {"recipe": "modern", "lr_schedule.lr_wsd_decay_fraction": 0.5}, None),
        # As in the YAML.
        ("gpt-tiny", {"recipe": "modern", "optimizer.type": "Muon"}, {}),
    ],
)
def test_what_a_recipe_sets_follows_it(run: str, typed: dict[str, object], overrides: dict | None) -> None:
    """The form shows the values that a recipe sets; values that the user types take precedence."""
    draft = Draft(run)
    draft.type({key: str(value) for key, value in typed.items()})
    assert draft.overrides == (typed if overrides is None else overrides)
    trained = load(run, typed, check=False)
    assert load(run, draft.overrides, check=False) == trained
    assert draft.texts_for([trained]) == [{}] and not draft.unreadable
    assert Draft(run, typed).changes == draft.changes
    draft.type({"recipe": "gpt3" if run == "gpt3-tiny" else "modern"})
    assert draft.texts_for([load(run, draft.overrides, check=False)]) == [{}]


def test_names_follow_the_text_and_the_vocabulary() -> None:
    """Dataset and tokenizer names follow from the text and the vocabulary, as in the run itself, unless the
    user typed a name.
    """
    draft, names = Draft("gpt-tiny"), ("data.name", "tokenizer.name")
    draft.type({"data.sources": "[{kind: jsonl, path: books.jsonl}]"})
    assert [draft.value(name) for name in names] == [draft.config.data.name] * 2
    assert draft.overrides.keys() == {"data.sources"}
    draft.type({"name": "books"})
    assert [draft.value(name) for name in names] == ["books", "books"]
    draft.type({"data.name": "python-docs-1k"})
    assert (draft.config.data.name, draft.value("tokenizer.name")) == ("python-docs-1k", "python-docs-1k")
    assert draft.overrides["data.name"] == "python-docs-1k"
    again = Draft("gpt-tiny", {"tokenizer.vocab_size": 2048, "name": "wide"})
    assert again.changes == {"name": "wide", "tokenizer.vocab_size": 2048}
    assert again.value("tokenizer.name") == again.config.tokenizer.name == "wide"


def test_defaults_are_those_of_the_recipe() -> None:
    """Defaults come from the recipe and its architecture, unless the user chose another architecture. An
    unknown recipe has none.
    """
    draft = Draft("gpt3-tiny")
    keys = ("optimizer.type", "model.architecture", "model.untie_embeddings_and_output_weights")
    assert [draft.default(key) for key in keys] == ["AdamW", "gpt3", "false"]
    draft.type({"recipe": "modern"})
    assert [draft.default(key) for key in keys] == ["Muon", "qwen3", "false"]
    draft.type({"model.architecture": "llama"})
    assert [draft.default(key) for key in keys] == ["Muon", "qwen3", "true"]
    draft.type({"recipe": "moderne"})
    assert draft.default("optimizer.type") == "AdamW" and draft.assess().config is None
