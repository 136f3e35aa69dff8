"""The devices on this machine that a run needs, and the devices that it may use.

With device: gpu, a run needs one GPU per rank, among the GPUs that CUDA_VISIBLE_DEVICES leaves visible (in
backend.env, or in the shell or notebook kernel that submits). With device: cpu, it needs one core per thread
of its ranks. devices.json in the queue's folder limits both. If this machine is one of its hosts, a job with
backend hosts uses this machine's first GPUs, or the first GPUs in backend.env, and no cores.
"""

import os
from dataclasses import replace
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.findings import Finding
from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.hardware.nvml import CUDA_DEVICES, Gpu, driver_gpus, named_gpu, visible_gpus
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.config.findings import finding_of
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine.environment import HELD_GPUS, threads_per_rank
from nbtrain.jobs.machine.hostfile import hosts_of
from nbtrain.jobs.machine.machine import Machine, this_machine
from nbtrain.jobs.machine.node_address import is_this_machine
from nbtrain.jobs.machine.queue_folder import Queue

THREADS = "OMP_NUM_THREADS"
# Bytes in use above which a GPU counts as used by others; a desktop and a notebook's CUDA context use less.
FOREIGN_BYTES = 1 << 30
# Factor by which a request for memory may exceed the machine's without a report: of 64 GiB, the kernel counts
# 62 GiB.
MEMORY_SLACK = 1.1


def needs_of(config: RunConfig, queue: Queue) -> tuple[list[str], int]:
    """Return (slots that the run may use, number of slots that it needs); a slot is a GPU or a core."""
    if config.backend.kind == "hosts":
        slots = [f"gpu-{name}" for name in gpus_of_hosts_job(config)]
        return slots, len(slots)
    if config.resources.device == "gpu":
        return [f"gpu-{name}" for name in gpu_names(config, queue)], config.world_size
    numbers = core_numbers(queue)
    own = config.backend.env.get(THREADS, "")
    threads = int(own) if own.isdigit() else threads_per_rank(config, len(numbers))
    # If there are more ranks than cores, ranks share cores, and the run gets all of them.
    return [f"cpu-{number}" for number in numbers], min(len(numbers), config.world_size * max(1, threads))


def chosen_gpus(config: RunConfig) -> tuple[str, str | None]:
    """Return the CUDA_VISIBLE_DEVICES that applies to the run's ranks, as (name of the setting, value).

    The value None lets the ranks see all GPUs. Devices from the queue are not considered.
    """
    if (own := config.backend.env.get(CUDA_DEVICES)) is not None:
        return f"backend.env.{CUDA_DEVICES}", own
    # on_host.py removes the variable of a host's shell.
    return CUDA_DEVICES, None if config.backend.kind == "hosts" else os.environ.get(CUDA_DEVICES)


def chosen_words(config: RunConfig) -> str:
    """Return text such as " (CUDA_VISIBLE_DEVICES=0,1)" for messages that count GPUs; "" if it is not set."""
    name, chosen = chosen_gpus(config)
    return "" if chosen is None else f" ({name}={shortened(chosen)})"


def gpus_of_ranks(config: RunConfig) -> tuple[Gpu, ...]:
    """Return this machine's GPUs that the run's ranks see, in the order in which the ranks use them.

    In a supervisor or agent, they are the GPUs that the job has from the queue, if it has any.
    """
    held = os.environ.get(HELD_GPUS) if config.backend.kind == "local" else None
    return visible_gpus(held or chosen_gpus(config)[1])


def machine_of_run(config: RunConfig) -> Machine:
    """Return this machine with the GPUs and cores that the run may use.

    devices.json limits both for a run that gets its devices from the queue. If devices.json is not valid,
    nothing is limited here, because LocalBackend.findings() rejects the run.
    """
    machine, queue = replace(this_machine(), gpus=gpus_of_ranks(config)), Queue()
    if config.backend.kind != "local" or config.backend.share_devices:
        return machine
    try:
        if config.resources.device == "cpu":
            return replace(machine, cores=len(core_numbers(queue)))
        if "gpus" not in _limits(queue):
            return machine
        names = gpu_names(config, queue)
    except JobError:
        return machine
    left = tuple(gpu for gpu in machine.gpus if (gpu.uuid or str(gpu.index)) in names)
    return replace(machine, gpus=left, withheld_gpus=len(machine.gpus) - len(left))


def gpu_names(config: RunConfig, queue: Queue) -> list[str]:
    """Return the UUIDs of the GPUs that the run may use, or their numbers if the driver reports no UUIDs."""
    _, chosen = chosen_gpus(config)
    listed = _limits(queue).get("gpus")
    gpus = driver_gpus()
    if listed is None:
        if chosen is None:
            return [gpu.uuid or str(number) for number, gpu in enumerate(gpus)]
        return _names(chosen.split(","), gpus) if gpus else []
    # In a list of allowed GPUs, a missing GPU must not hide the GPUs listed after it.
    allowed = dict.fromkeys(name for entry in listed for name in _names([entry], gpus))
    return [name for name in allowed if chosen is None or name in _names(chosen.split(","), gpus)]


def gpus_of_hosts_job(config: RunConfig) -> list[str]:
    """Return the UUIDs of the GPUs that a job with backend hosts uses on this machine.

    The queue does not choose them: on each machine, the ranks use the first GPUs, or the first GPUs in
    backend.env. Returns [] if this machine is not one of the job's hosts.
    """
    if config.resources.device != "gpu":
        return []
    try:
        if not any(is_this_machine(host) for host in hosts_of(config)):
            return []
    except ConfigError:
        return []
    gpus, (_, chosen) = driver_gpus(), chosen_gpus(config)
    everything = [gpu.uuid or str(number) for number, gpu in enumerate(gpus)]
    named = everything if chosen is None else _names(chosen.split(","), gpus)
    return named[: config.ranks_per_node]


def _names(entries: list[str], gpus: tuple[Gpu, ...]) -> list[str]:
    """Return the UUIDs of the listed GPUs, up to the first GPU that does not exist, as in CUDA."""
    names = []
    for entry in (text.strip() for text in entries):
        gpu = named_gpu(entry, gpus)
        if gpu is None and gpus:
            break
        if entry:
            names.append(gpu.uuid or entry if gpu else entry)
    return list(dict.fromkeys(names))


def core_numbers(queue: Queue) -> list[int]:
    """Return the numbers of the CPU cores that all jobs in the queue share.

    They are the cores that this process may use, within its container's limit and the limit in devices.json.
    """
    numbers = sorted(os.sched_getaffinity(0))[: usable_cores()]
    limit = _limits(queue).get("cores")
    return numbers if limit is None else numbers[:limit] or numbers[:1]


def _limits(queue: Queue) -> dict[str, Any]:
    """Return the contents of devices.json; {} without the file. Raises JobError if they are not valid."""
    found = files.read_json(queue.devices_json)
    if found is None:
        return {}
    gpus = found.get("gpus", []) if isinstance(found, dict) else None
    cores = found.get("cores", 1) if isinstance(found, dict) else None
    whole = isinstance(cores, int) and not isinstance(cores, bool) and cores >= 1
    if not (isinstance(gpus, list) and all(isinstance(gpu, str) for gpu in gpus) and whole):
        raise JobError(
            f'{display(queue.devices_json)}: must have the form {{"gpus": ["0", "1"], "cores": 6}}, with one '
            "or both of these keys: a list of strings with GPU numbers or UUIDs, and a number of cores, at "
            "least 1. Correct or remove the file."
        )
    return found


def too_few(config: RunConfig, queue: Queue) -> str:
    """Return why the run would wait forever in the queue; "" if the queue's limit leaves enough GPUs.

    If too few GPUs are visible at all, jobs/checks/preflight.py reports that.
    """
    slots, count = needs_of(config, queue)
    if config.resources.device != "gpu" or count <= len(slots) or "gpus" not in _limits(queue):
        return ""
    needs, limit = f"the run needs {amounts.counted(count, 'GPU')}", display(queue.devices_json)
    return f"{needs}, but {limit} allows only {len(slots)}{chosen_words(config)}."


def used_by_others(config: RunConfig, queue: Queue) -> list[str]:
    """Return a sentence for each GPU that the run may get although a program outside the queue uses it."""
    if config.backend.kind != "local" or config.resources.device != "gpu":
        return []
    slots, _ = needs_of(config, queue)
    held = {slot for ticket in queue.tickets() if ticket.supervisor.alive() for slot in ticket.holds}
    found = []
    for slot in slots:
        used = nvml.memory_used_bytes(name := slot.removeprefix("gpu-"))
        if slot not in held and used is not None and used > FOREIGN_BYTES:
            found.append(
                f"GPU {name}: {used / 2**30:,.1f} GiB is in use by programs outside nbtrain's queue (run "
                "`nvidia-smi` to see them); the run may run out of memory there"
            )
    return found


def more_than_is_here(config: RunConfig, machine: Machine | None = None) -> list[Finding]:
    """Return findings about cores and host memory that a run requests but this machine does not have.

    Returns [] if this machine lacks the run's GPUs, because then the run is meant for another machine, or its
    submission is rejected.
    """
    resources = config.resources
    cores, memory = resources.cpus_per_node, resources.memory_per_node_bytes
    if config.backend.kind != "local" or (cores is None and memory is None):
        return []
    machine, found = machine or machine_of_run(config), []
    if resources.device == "gpu" and len(machine.gpus) < config.world_size:
        return []
    if cores is not None and cores > machine.cores:
        key, has = "resources.cpus_per_node", amounts.counted(machine.cores, "core")
        said = f"cpus_per_node = {cores:,}, but {machine.host} has only {has} for this run."
        fix = (
            f"Set {key}: {machine.cores} or null (all cores), or submit the run on a machine with "
            f"{amounts.counted(cores, 'core')}."
        )
        found.append(finding_of(config, "cores_are_here", key, said, fix))
    if memory is not None and memory > MEMORY_SLACK * machine.memory_bytes:
        key, has = "resources.memory_per_node_bytes", amounts.size(machine.memory_bytes)
        said = (
            f"memory_per_node_bytes = {memory:,} is {amounts.size(memory)}, but {machine.host} has {has}, so "
            "a run that fits into host memory in the plan may not fit on this machine."
        )
        fix = f"Set {key}: {machine.memory_bytes} or null, or submit the run on a machine with more memory."
        found.append(finding_of(config, "memory_is_here", key, said, fix))
    return found


def threads_of_shell(config: RunConfig, queue: Queue) -> list[str]:
    """Return a sentence, without its full stop, if resources.cpus_per_node overrides OMP_NUM_THREADS."""
    asked, cores = os.environ.get(THREADS), config.resources.cpus_per_node
    if config.backend.kind != "local" or not asked or cores is None or THREADS in config.backend.env:
        return []
    here = len(core_numbers(queue)) if config.resources.device == "cpu" else usable_cores()
    if asked == str(threads := threads_per_rank(config, here)):
        return []
    why = f"{amounts.counted(min(cores, here), 'core')} for {amounts.counted(config.world_size, 'rank')}"
    return [
        f"each rank has {amounts.counted(threads, 'thread')} (resources.cpus_per_node: {why}), and this "
        f"shell's {THREADS}={shortened(asked)} is not used. To use it, set "
        f"backend.env.{THREADS}={shortened(asked)}"
    ]


def warnings_here(config: RunConfig, queue: Queue, machine: Machine) -> list[str]:
    """Return a sentence, without its full stop, for each request that this machine cannot fully meet."""
    asked = [finding.text.removesuffix(".") for finding in more_than_is_here(config, machine)]
    return [*asked, *threads_of_shell(config, queue), *used_by_others(config, queue)]
