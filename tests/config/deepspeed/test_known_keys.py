"""The table of DeepSpeed's keys agrees with the installed DeepSpeed; values are checked against it."""

import json
from pathlib import Path

import pytest

from nbtrain.base.version import PACKAGE
from nbtrain.config.deepspeed.known_keys import (
    TORCH_OPTIMIZERS,
    UNKNOWN_KEY,
    VERSION,
    broken_rule,
    key_problems,
    nearest_key,
    table,
    unknown_optimizer,
)

HERE = Path(__file__).parent
# Values of every kind, which DeepSpeed's models and the table must accept or reject alike.
VALUES = [
    True,
    False,
    0,
    1,
    -1,
    3,
    0.5,
    2.0,
    1e9,
    "x",
    "on",
    "7",
    "cpu",
    None,
    [],
    ["x"],
    {},
    {"a": 1},
    "auto",
]

VERDICTS = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import deepspeed_table as installed
from pydantic import ValidationError

found = {{}}
def ask(path, model):
    for name, info in model.model_fields.items():
        key, (_, inner) = info.alias or name, installed.described(info.annotation)
        if inner is not None:
            ask(f"{{path}}.{{key}}", inner)
            continue
        if (info.json_schema_extra or {{}}).get("deprecated"):
            continue
        taken = []
        for value in {VALUES!r}:
            try:
                model(**{{key: value}})
            except ValidationError as error:
                taken.append(not any(one["loc"][:1] in ((key,), (name,)) for one in error.errors()))
            else:
                taken.append(True)
        found[f"{{path}}.{{key}}"] = taken
for path, model in installed.MODELS.items():
    ask(path, model)
import torch
print("optimizers", json.dumps([name for name, one in vars(torch.optim).items() if isinstance(one, type)]))
print("table", json.dumps(installed.table()))
print("verdicts", json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(ask_deepspeed):
    """Return the table and the verdicts of the installed DeepSpeed."""
    lines = (line.partition(" ") for line in ask_deepspeed(VERDICTS))
    return {name: json.loads(text) for name, _, text in lines if name in ("table", "verdicts", "optimizers")}


@pytest.mark.slow
def test_the_table_is_that_of_the_installed_deepspeed(installed):
    """The table equals the installed DeepSpeed's; deepspeed_table.py writes the table of a new version."""
    assert installed["table"]["version"] == VERSION
    assert installed["table"] == table()


@pytest.mark.slow
def test_torch_has_the_optimizers_that_are_taken(installed):
    assert set(TORCH_OPTIMIZERS) <= set(installed["optimizers"])


@pytest.mark.slow
def test_a_value_is_taken_if_and_only_if_deepspeed_takes_it(installed):
    """The table accepts the same values as DeepSpeed's pydantic models, except for types that nbtrain does
    not support.
    """
    refused_here, refused_there = [], set()
    for path, verdicts in installed["verdicts"].items():
        section, _, key = path.rpartition(".")
        entry = table()["sections"][section][key]
        for value, taken in zip(VALUES, verdicts, strict=True):
            passes = broken_rule(entry, value) is None
            if taken and not passes:
                refused_here.append((path, value))
            if passes and not taken and entry["type"] != "any":
                refused_there.add(path)
    assert len(installed["verdicts"]) > 140
    assert refused_here == []
    # DeepSpeed's own functions. Precision decides the keys in fp16, and no run may set them.
    fp16 = {f"fp16.{key}" for key in ("loss_scale", "loss_scale_window", "min_loss_scale")}
    assert refused_there == {"compile.passes", *fp16}


def test_the_table_is_small_and_ships_with_the_package():
    text = (PACKAGE / "config" / "deepspeed" / "tables" / f"deepspeed-{VERSION}.json").read_text()
    assert len(text) < 20_000
    assert json.loads(text)["sections"]["zero_optimization"]["sub_group_size"] == {"type": "int", "ge": 0}


def test_keys_are_looked_for_in_every_depth():
    """Keys are checked in nested sections too, and in `timers`, which has sections but no keys."""
    values = {
        "zero_optimization": {
            "offload_optimizer": {"devise": "cpu"},
            "leaf_module": {"klasses": "Layer"},
            "prefetch_bucket_size": 5,
            "stage3_prefetch_bucket_size": "auto",
        },
        "timers": {"throughput": {"enabld": True}},
        "tensorboard": {"enabled": True, "output_path": 3},
        "steps_per_print": 5,
    }
    assert [
        (problem.key, nearest_key(problem.key) if problem.rule == UNKNOWN_KEY else "")
        for problem in key_problems(values)
    ] == [
        ("zero_optimization.offload_optimizer.devise", "device"),
        ("zero_optimization.leaf_module.klasses", "classes"),
        ("timers.throughput.enabld", "enabled"),
        ("tensorboard.output_path", ""),
    ]


@pytest.mark.parametrize(
    ("values", "path", "words"),
    [
        ({"gradient_clipping": "one"}, "gradient_clipping", "must be a number, not one."),
        ({"gradient_clipping": True}, "gradient_clipping", "must be a number, not true."),
        ({"gradient_clipping": None}, "gradient_clipping", "must be a number, not null."),
        ({"train_batch_size": "32"}, "train_batch_size", "must be a whole number, not '32'."),
        ({"train_batch_size": 1.5}, "train_batch_size", "must be a whole number, not 1.5."),
        ({"prescale_gradients": "false"}, "prescale_gradients", "must be true or false, not 'false'."),
        ({"aio": {"block_size": "1M"}}, "aio.block_size", "must be a whole number, not 1M."),
        ({"aio": {"single_submit": "no"}}, "aio.single_submit", "must be true or false, not 'no'."),
        ({"flops_profiler": {"output_file": 5}}, "flops_profiler.output_file", "must be text, not 5."),
        ({"autotuning": {"arg_mappings": 1}}, "autotuning.arg_mappings", "must be a mapping, not 1."),
        (
            {"activation_checkpointing": {"number_checkpoints": "4"}},
            "activation_checkpointing.number_checkpoints",
            "must be a whole number, not '4'.",
        ),
    ],
)
def test_what_deepspeed_reads_without_a_model_has_types_too(values, path, words):
    """Types are also checked at the top level and in the four sections in which
    DeepSpeed converts nothing.
    """
    (problem,) = key_problems(values)
    assert (problem.key, problem.message) == (path, f"{path} {words}")


def test_values_without_a_model_that_are_taken():
    values = {
        "train_batch_size": 32.0,
        "train_micro_batch_size_per_gpu": None,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1,
        "prescale_gradients": 0,
        "communication_data_type": "fp16",
        "aio": {"block_size": 1048576, "overlap_events": True},
        "flops_profiler": {"output_file": None, "recompute_fwd_factor": 0},
        "autotuning": {"model_info": {"num_params": 1}, "arg_mappings": {"a": "b"}},
    }
    assert list(key_problems(values)) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Adam", ""),
        ("LAMB", ""),
        ("SGD", ""),
        ("auto", ""),
        ("AdanW", "DeepSpeed 0.19.8 has no optimizer AdanW. Nearest: AdamW."),
        ("sgd", "DeepSpeed 0.19.8 has no optimizer sgd. Nearest: SGD."),
        ("Sophia", "DeepSpeed 0.19.8 has no optimizer Sophia."),
        (5, "DeepSpeed 0.19.8 has no optimizer 5."),
    ],
)
def test_the_name_of_an_optimizer(kind, words):
    """Names of DeepSpeed's optimizers are accepted in any case, torch's only in their exact spelling."""
    assert unknown_optimizer(kind) == words


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ({"type": "int", "ge": 0}, -1, "must be at least 0"),
        ({"type": "int", "gt": 0}, 0, "must be more than 0"),
        ({"type": "float", "le": 1}, 1.5, "must be at most 1"),
        ({"type": "float", "gt": 0, "lt": 1}, 1, "must be less than 1"),
        ({"type": "int"}, 0.5, "must be a whole number"),
        ({"type": "int"}, None, "must be a whole number"),
        ({"type": "bool"}, 2, "must be true or false"),
        ({"type": "str"}, 2, "must be text"),
        ({"type": "list"}, "a", "must be a list"),
        ({"type": "mapping"}, [], "must be a mapping"),
        ({"type": "choice", "choices": ["none", "cpu"]}, "gpu", "must be one of none, cpu"),
        ({"type": "int", "ge": 0}, 0, None),
        ({"type": "int", "null": True}, None, None),
        ({"type": "choice", "choices": [0, 1]}, 1, None),
    ],
)
def test_the_words_of_a_refusal(entry, value, words):
    assert broken_rule(entry, value) == words
