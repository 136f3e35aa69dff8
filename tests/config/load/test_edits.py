"""A change of single fields gives the run that load() gives with these overrides."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.load.edits import with_overrides, with_values

CHANGES = (
    {"mode": "perf"},
    {"batch.micro_batch_size": 1, "parallel.activation_checkpointing.granularity": "full"},
    {"parallel.pipeline_stage_layers": None},
    {"backend.env": {"NCCL_DEBUG": "INFO"}},
)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_overrides_equal_those_of_load(changes):
    config = load("gpt-tiny")
    loaded, changed = load(config, changes), with_overrides(config, changes)
    assert changed == loaded and changed.shape == loaded.shape
    assert changed._origins == loaded._origins
    assert changed.as_arguments == loaded.as_arguments


def test_values_leave_places_and_the_first_run_as_they_were():
    config = load("gpt-tiny")
    changed = with_values(config, {"batch.micro_batch_size": 1})
    assert changed.batch.micro_batch_size == 1 and config.batch.micro_batch_size != 1
    assert changed.where("batch.micro_batch_size") == config.where("batch.micro_batch_size")


def test_shape_follows_its_fields():
    config = load("gpt-tiny")
    layers = config.shape.num_layers
    assert with_values(config, {"model.num_layers": layers + 1}).shape.num_layers == layers + 1


def test_every_value_of_the_wrong_type_is_reported_as_load_reports_it():
    wrong = {"mode": "ful", "parallel.zero_stage": 9}
    with pytest.raises(ConfigError) as by_load:
        load("gpt-tiny", wrong)
    with pytest.raises(ConfigError) as error:
        with_overrides(load("gpt-tiny"), wrong)
    assert error.value.findings == sorted(
        by_load.value.findings, key=lambda finding: list(wrong).index(finding.key)
    )


def test_a_broken_rule_is_reported_with_its_override():
    with pytest.raises(ConfigError, match=r"override batch\.global_batch_size=7: "):
        with_overrides(load("gpt-tiny"), {"batch.global_batch_size": 7, "batch.micro_batch_size": 2})
