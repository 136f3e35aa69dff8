"""A run resized to another number of data-parallel ranks, with the same global batch size and steps.

    backend.elastic: a restart counts the devices -> fitted -> job.json -> attempt_config (attempt.py)

Only data_parallel_size changes, and with it the number of machines and GPUs that the ranks use. Each step
trains on the same samples in the same order (dataset/samples/state.py). With fewer ranks, each rank processes
more micro-batches one after the other.
"""

from collections.abc import Sequence

from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig


def resized(config: RunConfig, data_parallel_size: int, nodes: int | None = None) -> RunConfig:
    """Return the run with this number of data-parallel replicas, spread evenly over `nodes` machines.

    With `nodes` None, the number of machines stays the same.
    """
    resources, nodes = config.resources, nodes or config.resources.nodes
    if (data_parallel_size, nodes) == (config.parallel.data_parallel_size, resources.nodes):
        return config
    return spread(with_values(config, {"parallel.data_parallel_size": data_parallel_size}), nodes)


def spread(config: RunConfig, nodes: int | None = None) -> RunConfig:
    """Return the run with its ranks spread evenly over `nodes` machines.

    With `nodes` None, they are spread over as few machines as can hold them, or over as many as before if no
    number of machines can hold them.
    """
    resources, ranks = config.resources, config.world_size
    nodes = nodes or _machines(ranks, [config.ranks_per_node] * resources.nodes) or resources.nodes
    gpus = ranks // nodes if resources.device == "gpu" else resources.gpus_per_node
    return with_values(config, {"resources.nodes": nodes, "resources.gpus_per_node": gpus})


def fitted(config: RunConfig, devices: Sequence[int]) -> RunConfig | None:
    """Return the run with the largest data_parallel_size that passes all rules. None if no size does.

    `devices` is the number of devices on each machine. The run uses the first machines, as few of them as can
    hold all ranks evenly.
    """
    copy = config.world_size // config.parallel.data_parallel_size
    most = min(sum(devices) // copy, config.batch.global_batch_size // config.batch.micro_batch_size)
    for size in range(most, 0, -1):
        nodes = _machines(copy * size, devices)
        if nodes and config.batch.global_batch_size % size == 0:
            found = resized(config, size, nodes)
            if not find_problems(found):
                return found
    return None


def _machines(ranks: int, devices: Sequence[int]) -> int | None:
    """Return the smallest number of machines that can hold `ranks`, with the same number of ranks on each.

    `devices` is the number of devices on each machine. Machines are used from the first one on. None if no
    number of machines can hold the ranks.
    """
    for nodes in range(1, len(devices) + 1):
        if ranks % nodes == 0 and min(devices[:nodes]) >= ranks // nodes:
            return nodes
    return None
