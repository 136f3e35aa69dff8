"""The record of one attempt of a job in job.json. Its ranks read nothing else besides config.yaml.

backend.env (injected faults, traces), the devices that are left -> attempt_record -> job.json -> the ranks
"""

import time

from nbtrain.base.run_directory.records import AttemptRecord
from nbtrain.config import fault_orders
from nbtrain.config.load.edits import with_values
from nbtrain.config.load.elastic import resized
from nbtrain.config.schema import RunConfig

TRACE = "NBTRAIN_TRACE"
"""Variable in backend.env: with "1", rank 0 writes each step's loss and gradient norm as hex float events."""
TAKEN_OVER = (fault_orders.VARIABLE, TRACE)
"""Variables of backend.env that go into the record of each attempt. Ranks never see them."""


def environment_of_ranks(config: RunConfig) -> dict[str, str]:
    """Return backend.env without the variables that only the record of an attempt has."""
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

    `async_save` is the plan's decision, and `saving` its reason. Without it, checkpoints are written in the
    background only if the run says so. `paused_seconds` do not count in batch.exit_duration_minutes.

    Raises ValueError if backend.env orders faults that no rank would understand.
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
    """Return the configuration that the ranks of an attempt train with. backend.elastic may have changed its
    number of replicas, and checkpoint.async_save is decided.
    """
    asked = config.checkpoint.async_save
    # The record of an older version has no answer, but the configuration of its run has one.
    decided = bool(asked) if record.async_save is None else record.async_save
    config = resized(config, record.data_parallel_size, record.nodes)
    return config if asked is decided else with_values(config, {"checkpoint.async_save": decided})
