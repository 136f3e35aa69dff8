"""recipe: a name that sets several fields, and its precedence over other settings."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.names import architectures
from nbtrain.config.names.recipes import FIELDS, NAMES, fields_of
from nbtrain.config.rules.resume import WITHOUT_EFFECT, is_bound


def value(config, key):
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def said(config):
    """Return a run's values of the fields that recipes and architectures set."""
    found = {key: value(config, key) for key in FIELDS}
    return found | {f"model.{name}": getattr(config.model, name) for name in architectures.FIELDS}


def stands_for(name):
    fields = fields_of(name)
    inner = architectures.fields_of(fields["model.architecture"])
    return {f"model.{key}": entry for key, entry in inner.items()} | fields


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_its_fields(name, child):
    """A name sets its fields in a file, as an override and in Python, and no rule refuses them."""
    config = load(child(f"extends: gpt-125m\nname: child\nrecipe: {name}\n"))
    assert said(config) == stands_for(name)
    assert load("gpt-125m", [f"recipe={name}", "name=child"]) == config
    assert load(load("gpt-125m"), {"recipe": name, "name": "child"}) == config
    assert said(load(config, "recipe=gpt3")) == stands_for("gpt3")


def test_modern_is_llamas_layers_with_norms_of_queries_muon_and_wsd():
    config = load("gpt-125m", "recipe=modern")
    assert (config.model.activation, config.model.qk_layernorm) == ("swiglu", True)
    assert not config.model.untie_embeddings_and_output_weights
    assert (config.optimizer.type, config.lr_schedule.lr_decay_style) == ("Muon", "WSD")
    assert config.lr_wsd_decay_tokens == config.lr_decay_tokens // 5


def test_the_default_is_a_name_that_nobody_wrote(child):
    """A run without a recipe is unchanged, and gpt3 equals the schema's defaults."""
    path = child("extends: gpt-125m\nname: child\nmodel: {hidden_dropout: 0.0}\n")
    assert load(path).recipe == "gpt3"
    assert load(path).model.hidden_dropout == 0.0
    assert load(path, "recipe=gpt3").model.hidden_dropout == 0.1


def test_what_is_written_beside_or_over_the_name_goes_over_the_set(child):
    """Values set next to the recipe or above it win, such as an architecture, an
    optimizer or another length.
    """
    path = child(
        "extends: gpt-125m\nname: child\noptimizer: {muon_lr: 0.01}\nmodel: {architecture: llama}\n"
        "recipe: modern\nlr_schedule: {lr_wsd_decay_steps: 1000}\n"
    )
    config = load(path)
    inner = architectures.fields_of("llama")
    assert {name: getattr(config.model, name) for name in inner} == inner
    assert (config.optimizer.type, config.optimizer.muon_lr) == ("Muon", 0.01)
    assert config.lr_schedule.lr_wsd_decay_fraction is None
    assert config.lr_wsd_decay_tokens == 1000 * config.tokens_per_step
    assert load("gpt-125m", ["recipe=modern", "optimizer.type=AdamW"]).optimizer.type == "AdamW"
    cosine = load("gpt-125m", ["recipe=modern", "lr_schedule.lr_decay_style=cosine"]).lr_schedule
    assert (cosine.lr_decay_style, cosine.lr_wsd_decay_fraction) == ("cosine", None)
    over = load("gpt-125m", ["recipe=modern", "model.qk_layernorm=false", "model.norm_epsilon=1e-3"])
    assert (over.model.qk_layernorm, over.model.norm_epsilon, over.model.activation) == (
        False,
        1e-3,
        "swiglu",
    )


def test_a_recipe_goes_over_the_files_below(child):
    """A recipe wins over the files below it, including their decay of the learning rate in any unit."""
    child("extends: gpt-125m\nlr_schedule: {lr_decay_style: WSD, lr_wsd_decay_tokens: 7000000}\n", "below")
    config = load(child("extends: below\nname: child\nrecipe: modern\n"))
    assert said(config) == stands_for("modern")
    again = load(child("extends: child\nrecipe: modern\noptimizer: {muon_momentum: 0.9}\n", "again"))
    assert again.optimizer.muon_momentum == 0.9


def test_a_name_that_is_there_already_changes_nothing(child):
    path = child("extends: gpt-125m\nname: child\nrecipe: modern\nmodel: {norm_epsilon: 1.0e-3}\n")
    assert load(path, "recipe=modern") == load(path)
    assert load(load(path), {"recipe": "modern"}) == load(path)


def test_a_place_of_a_field_is_that_of_the_name(child):
    path = child("extends: gpt-125m\nname: child\nrecipe: modern\n")
    for key in ("optimizer.type", "model.architecture", "model.activation", "lr_schedule.lr_decay_style"):
        assert load(path).where(key) == "child.yaml:3"
    config = load("gpt-125m", ["recipe=modern", "optimizer.muon_lr=0.01"])
    assert config.as_arguments == ["gpt-125m", "recipe=modern", "optimizer.muon_lr=0.01"]
    assert load(*config.as_arguments[:1], config.as_arguments[1:]) == config


def test_a_resolved_file_says_every_field(tmp_path):
    config = load("gpt-125m", "recipe=modern")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config).replace("muon_momentum: 0.95", "muon_momentum: 0.5"))
    assert (load_resolved(path).recipe, load_resolved(path).optimizer.muon_momentum) == ("modern", 0.5)


@pytest.mark.parametrize("written", ["modem", "null", "[modern]"])
def test_what_is_no_recipe_is_refused(written):
    with pytest.raises(ConfigError, match="must be 'gpt3' or 'modern'"):
        load("gpt-125m", f"recipe={written}")


def test_the_fields_bind_a_resume_and_not_the_name():
    assert not is_bound("recipe") and "recipe" in WITHOUT_EFFECT and is_bound("optimizer.type")
