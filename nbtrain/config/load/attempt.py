"""The record of one attempt of a job in job.json. Its ranks read nothing else besides config.yaml.

backend.env (injected faults, traces), the devices that are left -> attempt_record -> job.json -> the ranks
"""

import time

from nbtrain.base.run_directory.records import AttemptRecord
from nbtrain.config import fault_orders
from nbtrain.config.load.elastic import resized
from nbtrain.config.schema import RunConfig

TRACE = "NBTRAIN_TRACE"
"""Variable in backend.env: with "1", rank 0 writes each step's loss and gradient norm as hex float events."""
TAKEN_OVER = (fault_orders.VARIABLE, TRACE)
"""Variables of backend.env that go into the record of each attempt. Ranks never see them."""


def attempt_record(
    config: RunConfig, number: int, first_step: int | None = None, first_tokens: int = 0
) -> AttemptRecord:
    """Return the record of a new attempt. `first_step` is the step of the checkpoint to load.

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
    )


def attempt_config(config: RunConfig, record: AttemptRecord) -> RunConfig:
    """Return the configuration that the ranks of an attempt train with. backend.elastic may have changed its
    number of replicas.
    """
    return resized(config, record.data_parallel_size, record.nodes)
