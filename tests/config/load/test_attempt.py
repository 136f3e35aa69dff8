"""Settings that an attempt reads from its own record."""

from dataclasses import replace

import pytest

from nbtrain.config.load import load
from nbtrain.config.load.attempt import attempt_config, attempt_record
from nbtrain.config.load.edits import with_values


@pytest.fixture
def config(tmp_path):
    def make(**env):
        overrides = {"parallel.data_parallel_size": 4, "batch.micro_batch_size": 2, "backend.env": env}
        return load("gpt-tiny", overrides)

    return make


def test_an_attempt_trains_with_its_own_size(config):
    """An elastic attempt takes its size from its record; config.yaml and the line
    in messages stay the same.
    """
    record = attempt_record(config(), 1, first_step=8, first_tokens=1024)
    assert (record.attempt, record.world_size, record.data_parallel_size) == (1, 4, 4)
    assert (record.first_step, record.first_tokens) == (8, 1024)
    assert attempt_config(config(), record).parallel.data_parallel_size == 4
    record.data_parallel_size, record.nodes = 2, None
    changed = attempt_config(config(), record)
    assert (changed.parallel.data_parallel_size, changed.world_size, changed.resources.nodes) == (2, 2, 1)
    on_gpus = config().model_copy(
        update={"resources": config().resources.model_copy(update={"device": "gpu", "gpus_per_node": 4})}
    )
    assert attempt_config(on_gpus, record).resources.gpus_per_node == 2
    assert changed.where("parallel.data_parallel_size") == config().where("parallel.data_parallel_size")


def test_an_attempt_saves_as_its_record_says(config):
    """The plan's decision is in the record, and a later attempt may have another. Without a decision, and in
    records of older versions, checkpoints are written in the background only if the run says so.
    """
    open_run = config()
    for decided in (True, False):
        record = attempt_record(open_run, 0, async_save=decided, saving="why")
        assert (record.async_save, record.saving) == (decided, "why")
        assert attempt_config(open_run, record).checkpoint.async_save is decided
    assert open_run.checkpoint.async_save is None
    for asked in (None, True, False):
        run = with_values(open_run, {"checkpoint.async_save": asked})
        by_hand = attempt_record(run, 0)
        assert by_hand.async_save is bool(asked)
        assert attempt_config(run, by_hand).checkpoint.async_save is bool(asked)
        assert attempt_config(run, replace(by_hand, async_save=None)).checkpoint.async_save is bool(asked)


def test_what_backend_env_orders_is_taken_over(config):
    """Faults and traces are in the attempt's record only if backend.env requests them."""
    quiet = attempt_record(config(), 0)
    assert (quiet.faults, quiet.trace) == ([], False)
    ordered = attempt_record(config(NBTRAIN_FAULTS='[{"step": 6, "do": "nan"}]', NBTRAIN_TRACE="1"), 0)
    assert (ordered.faults, ordered.trace) == ([{"step": 6, "do": "nan"}], True)
    assert not attempt_record(config(NBTRAIN_TRACE="0"), 0).trace
    with pytest.raises(ValueError, match="is not JSON"):
        attempt_record(config(NBTRAIN_FAULTS="nan"), 0)
