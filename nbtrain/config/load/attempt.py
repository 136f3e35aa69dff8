"""The record of one attempt in job.json. The ranks of the attempt read only this record and config.yaml.

backend.env (faults, traces), usable devices -> attempt_record() -> job.json -> the ranks
"""

import time

from nbtrain.base.run_directory.records import AttemptRecord
from nbtrain.config import fault_orders
from nbtrain.config.load.edits import with_values
from nbtrain.config.load.elastic import resized
from nbtrain.config.schema import RunConfig

TRACE = "NBTRAIN_TRACE"
"""Variable in backend.env. If it is "1", rank 0 writes each step's loss and gradient norm as events, in
hexadecimal.
"""
TAKEN_OVER = (fault_orders.VARIABLE, TRACE)
"""Variables in backend.env that are stored in the record of each attempt, and that ranks do not get."""


def environment_of_ranks(config: RunConfig) -> dict[str, str]:
    """Return the variables in backend.env that ranks get: all except TAKEN_OVER."""
    return {name: value for name, value in config.backend.env.items() if name not in TAKEN_OVER}


def attempt_record(
    config: RunConfig,
    number: int,
    first_step: int | None = None,
    first_tokens: int = 0,
    async_save: bool | None = None,
    saving: str = "",
    paused_seconds: float = 0.0,
) -> AttemptRecord:
    """Return the record of a new attempt. `first_step` is the step of the checkpoint to load.

    `async_save` is the plan's decision whether to write checkpoints in the background. If it is None, they
    are written in the background only if the run sets checkpoint.async_save: true. `saving` is a sentence
    with the decision and its reason. `paused_seconds` is the time for which the job was paused, which does
    not count towards batch.exit_duration_minutes.

    Raises ValueError if the fault orders in backend.env are invalid.
    """
    env = config.backend.env
    return AttemptRecord(
        number,
        time.time(),
        config.world_size,
        config.parallel.data_parallel_size,
        first_step=first_step,
        first_tokens=first_tokens,
        faults=fault_orders.read_orders(env.get(fault_orders.VARIABLE, "[]")),
        trace=env.get(TRACE) == "1",
        nodes=config.resources.nodes,
        async_save=bool(config.checkpoint.async_save) if async_save is None else async_save,
        saving=saving,
        paused_seconds=paused_seconds,
    )


def attempt_config(config: RunConfig, record: AttemptRecord) -> RunConfig:
    """Return the configuration with which the ranks of an attempt train.

    It is the run's configuration with the attempt's number of replicas and machines, which an elastic restart
    may have changed (backend.elastic). checkpoint.async_save is true or false, never null.
    """
    asked = config.checkpoint.async_save
    # A record written by an older version has no decision, but the configuration of its run has one.
    decided = bool(asked) if record.async_save is None else record.async_save
    config = resized(config, record.data_parallel_size, record.nodes)
    return config if asked is decided else with_values(config, {"checkpoint.async_save": decided})
