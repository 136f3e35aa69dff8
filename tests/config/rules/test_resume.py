"""Settings that a resume may change; tests/jobs and tests/train test that it refuses other changes."""

import pytest

from nbtrain.checkpoint.live.describe import architecture
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.config.rules.resume import BOUND, SAME_MATHEMATICS, WITHOUT_EFFECT, is_bound, misfits, within
from nbtrain.config.schema import ModelConfig
from nbtrain.config.sections.markers import Architecture, OfRun, marked
from nbtrain.dataset.samples.state import DataState


def recorded(config) -> dict:
    """Return the fields of a checkpoint's manifest that record the fields a resume must not change."""
    data = DataState(config.data.seed or 7, "969,30,1", "exact", "d" * 64, 100)
    return {
        "architecture": architecture(config),
        "vocab_size": config.tokenizer.vocab_size,
        "optimizer": config.optimizer.type,
        "tokenizer_sha256": "t" * 64,
        "code_sha256": None,
        "data_state": data.to_dict(),
    }


# Fields of `model` that decide neither a shape nor the meaning of a weight: what the initial weights are, and
# what training adds to them.
NOT_ARCHITECTURE = {
    "make_vocab_size_divisible_by",
    "hidden_dropout",
    "attention_dropout",
    "init_method_std",
    "seed",
}


def test_every_field_of_the_model_is_sorted():
    """Each field of `model` has exactly one kind: architecture, equal mathematics,
    or listed here as neither.
    """
    architecture = set(marked(ModelConfig, Architecture))
    same = {key.removeprefix("model.") for key in SAME_MATHEMATICS if key.startswith("model.")}
    assert architecture | same | NOT_ARCHITECTURE == set(ModelConfig.model_fields)
    assert len(architecture) + len(same) + len(NOT_ARCHITECTURE) == len(ModelConfig.model_fields)


# Fields of `model` outside the architecture that describe the model nevertheless: an export contains them.
DESCRIBES_THE_MODEL = {"architecture", "hidden_dropout", "attention_dropout", "init_method_std"}


def test_every_field_is_of_the_model_or_of_the_run():
    """Each field of `model` outside the architecture is marked as the run's or listed here as the model's."""
    of_run, architecture = set(marked(ModelConfig, OfRun)), set(marked(ModelConfig, Architecture))
    assert not of_run & architecture
    assert of_run | DESCRIBES_THE_MODEL == set(ModelConfig.model_fields) - architecture
    assert not of_run & DESCRIBES_THE_MODEL


def test_no_bound_field_is_said_to_be_without_effect():
    """No field that a resume must not change is also listed as having no effect or equal mathematics."""
    for key in field_keys():
        if is_bound(key) and key != "model":
            assert not within(key, WITHOUT_EFFECT) and not within(key, SAME_MATHEMATICS), key


def test_every_row_of_a_checkpoint_is_compared():
    config = load("gpt-tiny")
    saved = recorded(config)
    assert misfits(saved, recorded(config)) == []
    compared = {recorded: key for key, recorded in BOUND.items() if recorded}
    assert set(compared) == {
        "vocab_size",
        "tokenizer_sha256",
        "code_sha256",
        "optimizer",
        *(f"architecture.{name}" for name in saved["architecture"]),
        *(
            f"data_state.{name}"
            for name in saved["data_state"]
            # The training's position, not the data that it trains on.
            if name not in ("consumed_samples", "skipped_sample_ranges")
        ),
    }
    for field, key in compared.items():
        section, _, name = field.rpartition(".")
        inner = saved[section] if section else saved
        changed = {**inner, name: "another"}
        (message,) = misfits({**saved, section: changed} if section else changed, saved)
        assert message.startswith(f"{key} ")


@pytest.mark.parametrize(
    "key, bound",
    [
        ("model.hidden_dropout", True),
        ("model.compile", False),
        ("data.sources.0.weight", True),
        ("data.sources.0.path", False),
        ("parallel.tensor_parallel_size", False),
        ("optimizer.weight_decay", False),
        ("batch.rampup.ramp_samples", True),
    ],
)
def test_what_makes_another_run(key, bound):
    assert is_bound(key) == bound
