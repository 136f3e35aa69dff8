"""Sections that may be null: the form has a switch for the section and fields for its keys, with the same
names as on the command line.
"""

from pathlib import Path
from typing import Any

import pytest

from nbtrain.config.load import load
from nbtrain.lab.form.answers import answer
from nbtrain.lab.form.draft import Draft
from nbtrain.lab.form.fields import every_field
from nbtrain.lab.widgets.launcher import LaunchForm
from tests.lab.form.test_answers import assessed, at

TUNED = "extends: gpt-tiny\ninit_from: base\nlora: {rank: 8, alpha: 24, init_from: adapters}\n"


@pytest.fixture
def tuned(workspace: Path) -> str:
    """Write the YAML of a run that fine-tunes with LoRA but does not set lora.kind."""
    (workspace / "tuned.yaml").write_text(TUNED)
    return "tuned.yaml"


def draft_of(run: str, **typed: str) -> Draft:
    draft = Draft(run)
    draft.type({key.replace("__", "."): text for key, text in typed.items()})
    return draft


def test_each_key_of_a_section_is_a_field() -> None:
    """Each key of a section is a field with a description, unit and default; it also names the section, which
    must be switched on.
    """
    sections = {key for key, one in every_field().items() if one.kind == "section"}
    assert sections == {"lora", "dpo", "model.rope_scaling", "batch.rampup"}
    assert {one.within for one in every_field().values()} == {"", *sections}
    rank, size = every_field()["lora.rank"], every_field()["batch.rampup.start_batch_size"]
    assert rank.description.startswith("Rank of an adapter")
    assert (rank.default, rank.within, rank.label) == ("16", "lora", "rank")
    assert (size.default, size.unit, size.within) == (None, "sequences", "batch.rampup")


@pytest.mark.parametrize(
    ("typed", "overrides", "changes"),
    [
        ({"lora": "{}"}, {"lora": {}}, ["lora"]),
        ({"lora": "{}", "lora__rank": "8"}, {"lora.rank": 8}, ["lora", "lora.rank"]),
        ({"lora__rank": "8"}, {"lora.rank": 8}, ["lora", "lora.rank"]),
        ({"lora__rank": "16"}, {"lora": {}}, ["lora"]),
        # While the section is off, its fields keep any typed value, which does not count.
        ({"lora": "null", "lora__rank": "8", "lora__alpha": "[5"}, {}, []),
        ({"lora__kind": "ia3", "dpo__beta": "0.2"}, {"lora.kind": "ia3", "dpo.beta": 0.2}, None),
    ],
)
def test_overrides_are_those_that_a_person_writes(
    typed: dict[str, str], overrides: dict[str, Any], changes: list[str] | None
) -> None:
    """The form's overrides can be loaded again, in a Python call and on the command line, and give the run
    that the form shows.
    """
    draft = draft_of("gpt-tiny", **typed)
    assert draft.overrides == overrides and not draft.unreadable
    assert changes is None or [*draft.changes] == changes
    config = load("gpt-tiny", draft.overrides, check=False)
    words = [f"{key}={every_field()[key].text(value)}" for key, value in overrides.items()]
    assert config == load("gpt-tiny", words, check=False)
    shown = config.model_dump()
    assert draft.value("lora") == (None if shown["lora"] is None else {})
    if shown["lora"]:
        assert {key: draft.value(f"lora.{key}") for key in shown["lora"]} == shown["lora"]
    assert Draft("gpt-tiny", draft.overrides).changes == draft.changes


def test_a_run_that_fine_tunes_opens_with_its_values(tuned: str) -> None:
    """The form of a run that fine-tunes opens with its values. The switch of the section removes and restores
    them; Reset restores the YAML's values.
    """
    fields = answer("form", {"yaml": tuned})["fields"]
    assert at(fields, "lora")["value"] == "{}" and at(fields, "dpo")["value"] == "null"
    assert at(fields, "lora.rank")["value"] == at(fields, "lora.rank")["base"] == "8"
    assert at(fields, "lora.dropout")["value"] == "0.0"
    found = assessed(tuned, lora="null", lora__alpha="16")
    assert found["line"] == 'nb.submit("tuned.yaml", {"lora": None})'
    assert found["changes"] == [["lora", "on", "off", "form"]]
    back = assessed(tuned, lora="{}", lora__alpha="16")
    assert back["line"] == 'nb.submit("tuned.yaml", {"lora.alpha": 16})'
    assert back["changes"] == [["lora.alpha", "24.0", "16", "form"]]


def test_another_kind_is_another_set_of_keys(tuned: str) -> None:
    """Choosing another kind changes the set of keys, and fields that the user did not type return to their
    defaults, as when YAMLs are merged.
    """
    found = assessed(tuned, lora__kind="ia3")
    assert found["line"] == 'nb.submit("tuned.yaml", {"lora.kind": "ia3"})'
    assert found["following"]["lora.rank"] == {"base": "16", "value": "16", "default": "16"}
    assert found["following"]["lora.init_from"]["value"] == ""
    assert load(tuned, {"lora.kind": "ia3"}, check=False).lora.rank == 16
    typed = draft_of(tuned, lora__rank="8", lora__kind="ia3")
    assert typed.overrides == {"lora.kind": "ia3", "lora.rank": 8}
    # Back to the YAML's own kind.
    assert draft_of(tuned, lora__kind="lora").overrides == {}
    assert load(tuned, {"lora.kind": "lora"}, check=False).lora.rank == 8


def test_the_notebook_gives_and_sets_fields_of_sections(workspace: Path) -> None:
    """A notebook may set keys of a section, one by one or as a single value; they are distinguished from
    values that the user typed.
    """
    found = assessed(overrides={"lora": {"rank": 8}}, lora__alpha="16")
    assert found["changes"] == [
        ["lora", "off", "on", "given"],
        ["lora.rank", "16", "8", "given"],
        ["lora.alpha", "32.0", "16", "form"],
    ]
    form = LaunchForm("gpt-tiny", {"lora.rank": 8})
    form.set("lora", {"alpha": 16.0, "targets": ["dense"]})
    assert form.draft.overrides == {"lora.rank": 8, "lora.alpha": 16.0, "lora.targets": ["dense"]}
    form.set("dpo.beta", 0.3)
    assert form.line == (
        'nb.submit("gpt-tiny", {"lora.rank": 8, "lora.alpha": 16.0, "lora.targets": ["dense"], '
        '"dpo.beta": 0.3})'
    )
    form.set("lora", None)
    assert form.draft.overrides == {"dpo.beta": 0.3}
    with pytest.raises(Exception, match=r"the form has no field 'lora\.rnk'"):
        form.set("lora", {"rnk": 8})
