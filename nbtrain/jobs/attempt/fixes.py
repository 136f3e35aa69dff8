"""Fixes for an attempt that ran out of memory or disk space.

Each fix names only changes that this run can still make, in settings that a resume may change.
"""

from nbtrain.base.run_directory import end_kinds
from nbtrain.base.text.alternatives import alternatives
from nbtrain.config.schema import RunConfig


def fix_of(kind: str, config: RunConfig) -> str:
    """Return a fix for an attempt that ran out of disk space or of memory, for a run with these settings.

    `kind` is DISK, DEVICE_MEMORY, SHARED_MEMORY or HOST_MEMORY of base/run_directory/end_kinds.py. The fix is
    a sentence without its full stop.
    """
    if kind == end_kinds.DISK:
        fewer = ", or lower checkpoint.keep_last" if config.checkpoint.keep_last > 1 else ""
        return f"Free up space there{fewer}; then resume the run"
    ways = {
        end_kinds.DEVICE_MEMORY: _less_device_memory,
        end_kinds.SHARED_MEMORY: _less_shared_memory,
        end_kinds.HOST_MEMORY: _less_host_memory,
    }[kind](config)
    said = alternatives(ways, last=", or ")
    return said[0].upper() + said[1:]


def _less_device_memory(config: RunConfig) -> list[str]:
    ways = []
    if config.batch.micro_batch_size > 1:
        ways.append("lower batch.micro_batch_size (the global batch size stays the same)")
    if config.parallel.activation_checkpointing.granularity != "full":
        ways.append("set parallel.activation_checkpointing.granularity: full")
    if _higher_stage_helps(config):
        ways.append("raise parallel.zero_stage")
    return ways or ["shard each copy of the model across more GPUs, or use larger GPUs"]


def _higher_stage_helps(config: RunConfig) -> bool:
    # Imported here because few attempts end like this, and otherwise every supervisor would load the planner.
    from nbtrain.planner.lint.remedies import stages_allowed

    return config.parallel.data_axis_size > 1 and bool(stages_allowed(config))


def _less_shared_memory(config: RunConfig) -> list[str]:
    in_pods = config.backend.kind == "kubernetes"
    place = "backend.kubernetes.shared_memory_bytes" if in_pods else "docker run --shm-size"
    more = f"give the job more shared memory ({place})"
    return [*(["set data.num_workers=0"] if config.data.num_workers else []), more]


def _less_host_memory(config: RunConfig) -> list[str]:
    lower = []
    if config.data.num_workers:
        lower.append("data.num_workers")
    if config.resources.device == "cpu" and config.batch.micro_batch_size > 1:
        lower.append("batch.micro_batch_size")
    ways = [f"lower {alternatives(lower)}"] if lower else []
    in_scheduler = config.backend.kind in ("kubernetes", "slurm")
    if config.checkpoint.async_save:
        ways.append("set checkpoint.async_save: false")
    return [*ways, "raise resources.memory_per_node_bytes" if in_scheduler else "give the job more memory"]
