"""model.architecture: a name that sets several fields, and its precedence over other settings."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.names.architectures import FIELDS, NAMES, fields_of
from nbtrain.config.rules.resume import is_bound

CHILD = "extends: gpt-125m\nname: child\nmodel:\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_its_fields(name, child):
    """A name sets its fields in a file, as an override and in Python, and no rule refuses them."""
    config = load(child(f"{CHILD}  architecture: {name}\n"))
    assert {field: getattr(config.model, field) for field in FIELDS} == fields_of(name)
    assert load("gpt-125m", [f"model.architecture={name}", "name=child"]) == config
    assert load(load("gpt-125m"), {"model": {"architecture": name}, "name": "child"}) == config
    assert load(config, "model.architecture=gpt3") == load("gpt-125m", "model.architecture=gpt3 name=child")


def test_the_default_is_what_models_were(child):
    """A run without an architecture is unchanged, and gpt3 equals the schema's defaults."""
    path = child("extends: gpt-125m\nname: child\nmodel: {hidden_dropout: 0.0}\n")
    assert load(path).model.architecture == "gpt3"
    assert load(path).model.hidden_dropout == 0.0
    assert load(path, "model.architecture=gpt3").model.hidden_dropout == 0.1


def test_what_is_written_beside_or_over_the_name_goes_over_the_set(child):
    """Fields set next to the name, or in files above it, win over the name in any
    order; files below do not.
    """
    own = child(f"{CHILD}  norm_epsilon: 1.0e-3\n  architecture: llama\n  hidden_dropout: 0.2\n")
    config = load(own)
    assert (config.model.norm_epsilon, config.model.hidden_dropout) == (1e-3, 0.2)
    assert config.model.attention_dropout == 0.0 and config.model.activation == "swiglu"
    grandchild = child("extends: child\nmodel: {rotary_base: 123.0}\n", "grandchild")
    assert load(grandchild).model.rotary_base == 123.0
    assert load(grandchild).model.norm_epsilon == 1e-3
    other = child("extends: grandchild\nmodel: {architecture: qwen3}\n", "other")
    assert {field: getattr(load(other).model, field) for field in FIELDS} == fields_of("qwen3")


def test_a_name_that_is_there_already_changes_nothing(child):
    path = child(f"{CHILD}  architecture: llama\n  norm_epsilon: 1.0e-3\n")
    assert load(path, "model.architecture=llama") == load(path)
    assert load(load(path), {"model.architecture": "llama"}) == load(path)
    again = child("extends: child\nmodel: {architecture: llama}\n", "again")
    assert load(again).model.norm_epsilon == 1e-3


def test_a_place_of_a_field_is_that_of_the_name(child):
    """The place of a field that the name sets is the name's line, and as_arguments lists only the name."""
    path = child(f"{CHILD}  architecture: llama\n")
    assert load(path).where("model.activation") == "child.yaml:4"
    config = load("gpt-125m", ["model.architecture=mistral", "model.window_size=5"])
    assert config.where("model.rotary_base") == "override model.architecture=mistral"
    assert config.as_arguments == ["gpt-125m", "model.architecture=mistral", "model.window_size=5"]
    assert load(*config.as_arguments[:1], config.as_arguments[1:]) == config


def test_a_resolved_file_says_every_field(tmp_path):
    """A resolved file keeps its values even if the name's fields change later; a new
    name sets all fields again.
    """
    config = load("gpt-125m", ["model.architecture=llama", "model.norm_epsilon=1e-3"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config).replace("rotary_base: 500000.0", "rotary_base: 7.0"))
    resolved = load_resolved(path)
    assert (resolved.model.architecture, resolved.model.rotary_base) == ("llama", 7.0)
    assert load(path).model == resolved.model
    assert load(path, "model.architecture=qwen2").model.rotary_base == 1_000_000.0


def test_a_parent_of_several_wins_by_its_place(child):
    child("model: {architecture: gpt3}\n", "plain")
    child("model: {architecture: llama}\n", "llama")
    path = child("extends: [gpt-125m, llama, plain]\nname: child\n")
    assert {field: getattr(load(path).model, field) for field in FIELDS} == fields_of("gpt3")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "model.architecture=lama",
            "override model.architecture=lama: model.architecture = lama: must be 'gpt3', 'llama', "
            "'mistral', 'qwen2', 'qwen3' or 'smollm3'. Nearest: llama.",
        ),
        ("model.architecture=null", "must be 'gpt3', 'llama', 'mistral', 'qwen2', 'qwen3' or 'smollm3'."),
        ("model.architecture=[llama]", "must be 'gpt3'"),
        (
            "model={architecture: llama, rotary_percent: 0.001}",
            "rotate 0 of the 64 dimensions of each head",
        ),
    ],
)
def test_what_is_no_architecture_is_refused(override, words):
    with pytest.raises(ConfigError) as raised:
        load("gpt-125m", override.split("  ") if " " in override else override)
    assert words in str(raised.value)


def test_a_resume_may_call_the_same_fields_otherwise():
    assert not is_bound("model.architecture") and is_bound("model.normalization")
