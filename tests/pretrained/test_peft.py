"""Adapter folders written by peft, and settings that would change what their weights mean."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from nbtrain.base.errors import CheckpointError
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.folder import PEFT_SETTINGS, PEFT_WEIGHTS
from nbtrain.pretrained.model import model_section, open_model
from nbtrain.pretrained.peft import adapter_problems, notes_of, section_fix, settings_of, shapes_of
from tests.pretrained.small import write_small_folder

BASE = (
    "which changes the base model; only adapters for an unchanged base model are supported (true, false, "
    "gaussian, orthogonal, eva, mica)"
)
CONVERTED = (
    "; peft's save_pretrained converts them to adapters for the original base model if you pass "
    "path_initial_model_for_weight_conversion"
)
SCALE = "model.layers.0.self_attn.{} is scaled by {}, but the run's lora.alpha and lora.use_rslora give 2"
AGAIN = "Save the adapters again, or correct the file."


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration of a run with adapters on all matrices of a small Llama."""
    folder = tmp_path_factory.mktemp("base")
    write_small_folder(folder)
    model = model_section(open_model(folder).described, folder)
    return RunConfig.model_validate(
        {
            "name": "adapted",
            "init_from": str(folder),
            "model": model.model_dump(),
            "lora": {"rank": 2, "alpha": 4},
            "tokenizer": {"name": "mock", "vocab_size": 20},
            "data": {"name": "mock"},
            "batch": {"micro_batch_size": 1, "global_batch_size": 1, "train_tokens": 16},
            "lr_schedule": {"lr": 1e-4},
        }
    )


@pytest.fixture
def problems(config, tmp_path, monkeypatch):
    """Return a function that changes settings in the run's own adapter folder and returns the problems that
    are found.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    (tmp_path / "a").mkdir()
    save_file(
        {name: np.ones(shape, "f4") for name, shape in shapes_of(config).items()},
        tmp_path / "a" / PEFT_WEIGHTS,
    )

    def problems(**changes):
        (tmp_path / "a" / PEFT_SETTINGS).write_text(json.dumps({**settings_of(config), **changes}))
        return adapter_problems(tmp_path / "a", config)

    return problems


def write_tensors(folder, config, named):
    """Write the run's own adapters, each renamed by `named`, which returns None for one to omit."""
    shapes = {named(name): shape for name, shape in shapes_of(config).items()}
    save_file(
        {name: np.ones(shape, "f4") for name, shape in shapes.items() if name}, folder / "a" / PEFT_WEIGHTS
    )


@pytest.mark.parametrize(
    "named",
    [
        lambda name: name.replace("base_model.model.model.", "base_model.model._orig_mod.model."),
        lambda name: name.replace("base_model.model.", "module."),
        lambda name: name.replace("layers.0.", "layers.0._fsdp_wrapped_module."),
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix("base_model.model."),
    ],
    ids=range(5),
)
def test_adapters_of_a_wrapped_model_are_read(named, config, problems, tmp_path):
    write_tensors(tmp_path, config, named)
    assert problems() == []
    write_tensors(tmp_path, config, lambda name: named(name).replace("q_proj", "other"))
    assert "has no model.layers.0.self_attn.q_proj.lora_A.weight (and 3 more)" in problems()[0]


def test_modules_that_the_folder_does_not_adapt_begin_at_zero(config, problems, tmp_path):
    """A module that the settings name but the file lacks is reported as damage; a module that they do not
    name starts at zero.
    """
    some = ("q_proj", "v_proj")
    write_tensors(tmp_path, config, lambda name: name if name.split(".")[-3] in some else None)
    for targets in (list(some), r".*\.[qv]_proj", ["self_attn.q_proj", "v_proj"]):
        assert problems(target_modules=targets) == []
        [note] = notes_of(tmp_path / "a", config)
        assert note.startswith("a has no adapters for k_proj, o_proj, ")
    assert (
        "has no model.layers.0.self_attn.k_proj.lora_A.weight (and 3 more)"
        in problems(target_modules=[*some, "k_proj"])[0]
    )
    assert "has no" in problems(target_modules=".*_proj")[0]
    assert problems(target_modules=".*_proj", exclude_modules=["k_proj", "o_proj", "gate_proj"])[
        0
    ].startswith("has no model.layers.0.mlp.down_proj")


def test_the_section_that_adapters_need(config, problems, tmp_path):
    """With the lora section that the message suggests, no problems remain."""
    changes = {"r": 2, "lora_alpha": 9, "use_rslora": True}
    found = problems(**changes)
    narrow = load(config, {"model.seq_length": 16, "lora.targets": ["dense"], "lora.rank": 5})
    fix = section_fix(tmp_path / "a", narrow)
    assert fix == (
        "Set lora.targets: [query_key_value, dense, dense_h_to_4h, dense_4h_to_h], lora.rank: 2, "
        "lora.alpha: 9, lora.use_rslora: true."
    )
    assert (
        found
        and adapter_problems(
            tmp_path / "a", load(config, {"model.seq_length": 16, "lora.alpha": 9, "lora.use_rslora": True})
        )
        == []
    )
    problems(use_dora=True)
    assert section_fix(tmp_path / "a", config) == ""


@pytest.mark.parametrize("first", [True, False, None, "gaussian", "orthogonal", "eva", "mica"])
def test_first_values_that_leave_the_base_as_it_is(first, problems):
    assert problems(init_lora_weights=first) == []


@pytest.mark.parametrize(
    "first", ["pissa", "pissa_niter_16", "olora", "corda", "lora_ga", "loftq", "new", [1]]
)
def test_adapters_of_a_base_that_was_changed_are_refused(first, problems):
    fix = "" if first in ("loftq", "new", [1]) else CONVERTED
    assert problems(init_lora_weights=first) == [f"init_lora_weights is {first!r}, {BASE}{fix}"]


@pytest.mark.parametrize(
    "key, value, plain",
    [
        ("use_dora", True, False),
        ("lora_bias", True, False),
        ("use_qalora", True, False),
        ("alora_invocation_tokens", [39], None),
        ("layer_replication", [[0, 2], [1, 2]], None),
        ("target_parameters", ["q_proj.weight"], None),
        ("arrow_config", {}, None),
        ("kasa_config", {}, None),
        ("monteclora_config", {}, None),
        ("use_bdlora", {}, None),
    ],
)
def test_adapters_that_mean_something_else_are_refused(key, value, plain, problems):
    assert problems(**{key: value}) == [f"{key} is {value!r}, but only {plain!r} is supported"]
    assert problems(**{key: plain}) == []


@pytest.mark.parametrize(
    "pattern, said",
    [
        (None, ""),
        ({"proj": 8}, ""),
        ({"q_proj": 8}, SCALE.format("q_proj", 4)),
        ({".*k_pr.j": 8}, SCALE.format("k_proj", 4)),
        ({"^model.layers.0.self_attn.[vw]_proj": 2}, SCALE.format("v_proj", 1)),
        # The first match.
        ({".*": 4, "q_proj": 8}, ""),
        ({"q_proj": 8, ".*": 4}, SCALE.format("q_proj", 4)),
    ],
)
def test_a_pattern_of_scales_is_a_regular_expression(pattern, said, problems):
    assert problems(alpha_pattern=pattern) == ([said] if said else [])


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"lora_alpha": None}, "lora_alpha = None: must be a number"),
        ({"lora_alpha": "4"}, "lora_alpha = '4': must be a number"),
        ({"lora_alpha": True}, "lora_alpha = True: must be a number"),
        ({"lora_alpha": 10**400}, f"lora_alpha = 1{'0' * 76}...: must be a number"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern.q_proj = None: must be a number"),
        ({"alpha_pattern": [1]}, "alpha_pattern = [1]: must be an object"),
        (
            {"alpha_pattern": {"(": 4}},
            "alpha_pattern = '(': is not a regular expression: missing ), unterminated subpattern",
        ),
        (
            {"alpha_pattern": {"a{99999999999}": 4}},
            "alpha_pattern = 'a{99999999999}': is not a regular expression: the repetition number is too "
            "large",
        ),
    ],
    ids=str,
)
def test_scales_that_are_none_are_refused(changes, said, problems):
    with pytest.raises(CheckpointError) as refused:
        problems(**changes)
    assert str(refused.value) == f"a/adapter_config.json: {said}. {AGAIN}"
