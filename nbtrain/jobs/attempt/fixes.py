"""Fixes of an attempt that ran out of memory or disk: only changes that this run can still make.

Each names settings that a resume may change.
"""

from nbtrain.base.run_directory import end_kinds
from nbtrain.config.schema import RunConfig


def fix_of(kind: str, config: RunConfig | None = None) -> str:
    """Return the fix of a kind of end, without its full stop; every change that may help if the run's
    configuration is not known.
    """
    if kind == end_kinds.DISK:
        fewer = config is None or config.checkpoint.keep_last > 1
        return f"Free space there{', or lower checkpoint.keep_last' if fewer else ''}; then resume the run"
    ways = {
        end_kinds.DEVICE_MEMORY: _less_device_memory,
        end_kinds.SHARED_MEMORY: _less_shared_memory,
        end_kinds.HOST_MEMORY: _less_host_memory,
    }[kind](config)
    said = ", or ".join(part for part in (", ".join(ways[:-1]), ways[-1]) if part)
    return said[0].upper() + said[1:]


def _less_device_memory(config: RunConfig | None) -> list[str]:
    ways = []
    if config is None or config.batch.micro_batch_size > 1:
        ways.append("lower batch.micro_batch_size (the global batch stays)")
    if config is None or config.parallel.activation_checkpointing.granularity != "full":
        ways.append("set parallel.activation_checkpointing.granularity: full")
    if config is None or _higher_stage_helps(config):
        ways.append("raise parallel.zero_stage")
    return ways or ["share each copy of the model among more GPUs, or use larger ones"]


def _higher_stage_helps(config: RunConfig) -> bool:
    # Imported here, because few attempts end like this, and each supervisor would load the planner.
    from nbtrain.planner.lint.remedies import stages_allowed

    return config.parallel.data_axis_size > 1 and bool(stages_allowed(config))


def _less_shared_memory(config: RunConfig | None) -> list[str]:
    ways = ["set data.num_workers=0"] if config is None or config.data.num_workers else []
    places = {"docker run --shm-size": False, "backend.kubernetes.shared_memory_bytes": True}
    named = [
        place
        for place, in_pods in places.items()
        if config is None or (config.backend.kind == "kubernetes") == in_pods
    ]
    return [*ways, f"give the job more: {', '.join(named)}"]


def _less_host_memory(config: RunConfig | None) -> list[str]:
    lower = []
    if config is None or config.data.num_workers:
        lower.append("data.num_workers")
    if config is None or (config.resources.device == "cpu" and config.batch.micro_batch_size > 1):
        lower.append("batch.micro_batch_size")
    ways = [f"lower {' or '.join(lower)}"] if lower else []
    if config is not None and config.checkpoint.async_save:
        ways.append("set checkpoint.async_save: false")
    return [*ways, "give the job more memory"]
