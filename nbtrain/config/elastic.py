"""The run on another number of data-parallel ranks, with the same global batch and so with the same steps.

    backend.elastic: a restart counts the devices -> elastic_size -> job.json -> attempt_config (attempt.py)

Only data_parallel_size changes. Each step takes the same samples in the same order
(dataset/samples/state.py); fewer ranks take more micro batches one after the other.
"""

from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig


def resized(config: RunConfig, data_parallel_size: int) -> RunConfig:
    """The run with that many data-parallel copies; nothing else changes."""
    if data_parallel_size == config.parallel.data_parallel_size:
        return config
    parallel = config.parallel.model_copy(update={"data_parallel_size": data_parallel_size})
    changed = config.model_copy(update={"parallel": parallel})
    changed._origins, changed._run = config._origins, config._run
    return changed


def elastic_size(config: RunConfig, devices: int) -> int | None:
    """The largest data_parallel_size for `devices` devices that passes all rules; None if no copy fits."""
    copy = config.world_size // config.parallel.data_parallel_size
    most = min(devices // copy, config.batch.global_batch_size // config.batch.micro_batch_size)
    for size in range(most, 0, -1):
        if config.batch.global_batch_size % size == 0 and not find_problems(resized(config, size)):
            return size
    return None
