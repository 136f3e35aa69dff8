"""Generated pages are up to date, and the JSON Schema agrees with the loader."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nbtrain.base.run_directory.metrics import SCALARS
from nbtrain.cli.reference.pages import generated, runs_table, with_table
from nbtrain.config.editor_schema import editor_schema
from nbtrain.config.load import load, to_yaml
from nbtrain.config.names.keys import field_keys
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.fields import described
from nbtrain.config.yaml_source import parse_yaml, read_yaml

if TYPE_CHECKING:
    import jsonschema

REPOSITORY = Path(__file__).parents[2]
TRAINING = REPOSITORY / "examples" / "megatron-gpt" / "training"
PAGES = generated(REPOSITORY)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_fresh(path):
    """`make docs` would change no page."""
    assert path.read_text(encoding="utf-8") == PAGES[path], f"{path.name} is stale: run `make docs`"


@pytest.mark.slow
def test_a_stale_table_is_noticed(tmp_path):
    """If a number in a run YAML changes, the generated table changes too."""
    for source in TRAINING.rglob("*.yaml"):
        target = tmp_path / source.relative_to(TRAINING)
        target.parent.mkdir(exist_ok=True)
        target.write_text(source.read_text())
    assert runs_table(tmp_path) == runs_table(TRAINING)
    changed = tmp_path / "common" / "gpt-1-3b-size.yaml"
    changed.write_text(changed.read_text().replace("train_tokens: 26e9", "train_tokens: 27e9"))
    fresh, old = runs_table(tmp_path).splitlines(), runs_table(TRAINING).splitlines()
    assert [new.count("27B") for new in fresh if new not in old] == [1, 1, 1]


def test_every_run_yaml_has_its_row():
    """The table has one row for every run YAML."""
    rows = re.findall(r"\| \[([\w-]+)\]\(training/\1\.yaml\) \|", runs_table(TRAINING))
    assert sorted(rows) == sorted(path.stem for path in TRAINING.glob("*.yaml"))


def test_a_page_without_its_markers_is_refused():
    """A page without the markers is refused; the table is not appended to it."""
    with pytest.raises(ValueError, match="the page lacks"):
        with_table("# A page", "| a |")


def test_no_section_is_described_in_half_a_sentence():
    """A first sentence that takes two lines in the docstring is shown completely."""
    lines = PAGES[REPOSITORY / "docs" / "config.md"].splitlines()
    after = [line for title, line in zip(lines, lines[2:]) if title.startswith("##")]
    assert len(after) > 20
    assert [line for line in after if not line.endswith((".", ":")) and not line.startswith("|")] == []


def test_the_reference_names_every_key_and_every_scalar():
    """The reference pages list every key and every scalar."""
    config, metrics = (PAGES[REPOSITORY / "docs" / name] for name in ("config.md", "metrics.md"))
    leaves = [key for key, section in field_keys().items() if section is None and key != "data.sources"]
    assert [key for key in leaves if f"| `{key}` |" not in config] == []
    assert [scalar.tag for scalar in SCALARS if f"| `{scalar.tag}` |" not in metrics] == []


def test_every_field_says_what_it_means():
    """Every field has a description, which the form and the reference page show."""

    def undescribed(model, prefix=""):
        for key, info in described(model).items():
            if not (info.description or "").strip():
                yield prefix + key

    sections = {"": RunConfig, **{f"{key}.": model for key, model in field_keys().items() if model}}
    assert [
        key
        for prefix, model in sections.items()
        for key in undescribed(model, prefix)
        if key != "backend.kind"
    ] == []


@pytest.fixture(scope="module")
def validator() -> "jsonschema.Draft202012Validator":
    import jsonschema  # its import takes seconds, and every test process collects this file

    jsonschema.Draft202012Validator.check_schema(editor_schema())
    return jsonschema.Draft202012Validator(editor_schema())


@pytest.mark.parametrize("path", sorted(TRAINING.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_accepts_every_example(path, validator):
    """The schema accepts every example as written and resolved."""
    validator.validate(read_yaml(path).value)
    if path.parent == TRAINING:
        validator.validate(json.loads(json.dumps(load(path).model_dump())))


@pytest.mark.parametrize(
    "wrong",
    [
        {"foo": 1},
        {"batch": {"micro_batch": 1}},
        {"batch": {"micro_batch_size": 0}},
        {"batch": {"micro_batch_size": "4"}},
        {"name": "GPT"},
        {"extends": 3},
        {"lr_schedule": {"lr": -1}},
        {"data": {"sources": [{"kind": "txt"}]}},
        {"data": {"sources": [{"kind": "text"}]}},
        {"backend": {"kind": "pbs"}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong, validator):
    """The schema refuses what the loader refuses, so that an editor marks the error before anything runs."""
    assert not validator.is_valid(wrong)


def test_the_resolved_text_is_what_the_schema_describes(validator):
    """The resolved config.yaml of a run is valid under the schema too."""
    validator.validate(parse_yaml(to_yaml(load("gpt-125m")), "config.yaml").value)
