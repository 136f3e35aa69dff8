"""Findings about machines and disks: data workers, checkpoints, folders, devices and the run's name."""

import math
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.files import nearest_existing
from nbtrain.base.findings import Cost, Finding
from nbtrain.base.run_directory.checkpoint_files import local_folder
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, output_root
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.saves import local_saves
from nbtrain.config.findings import finding_of
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.rules.environment import replaced_values
from nbtrain.config.rules.kubernetes import POD_GRACE_SECONDS
from nbtrain.config.schema import RunConfig
from nbtrain.planner.budget.disk import num_kept_for_ever
from nbtrain.planner.lint.intervals import SAVE_INTERVAL, saves_every
from nbtrain.planner.lint.remedies import (
    DATA,
    KEEP_EVERY,
    KEEP_LAST,
    MICRO_BATCH,
    differing,
    disk_remedy,
    words_of,
)
from nbtrain.planner.lint.run_estimates import RunEstimates

# CPU threads for each rank on a usual machine: eight H100 with two CPUs of 56 cores, each with two threads.
THREADS_OF_A_RANK = 28
# Kept checkpoints are reported if they have more than MANY_BYTES in total, or if there are more than
# MANY_CHECKPOINTS of them with more than MANY_BYTES_OF_MANY in total.
MANY_BYTES = 2**40
MANY_CHECKPOINTS = 10
MANY_BYTES_OF_MANY = 10 * 2**30
# A run of at least this many hours should save a checkpoint before its end.
LONG_HOURS = 2
# "1-3b", "1.3B" and "125m" are sizes in names. A model whose size differs by more than this factor is
# reported.
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9])((?:\d+[.-])?\d+)([mbt])(?![a-z0-9])", re.IGNORECASE)
NAME_FACTOR = 1.5
# Largest number of machines that a message lists.
MOST_NAMED = 8
# Safety factor, because a save takes longer while other jobs keep the disk busy.
SAVE_TIMES = 2.0
# A limit of over a day only delays the discovery of a dead rank; one below a minute breaks slow checkpoints.
USUAL_TIMEOUT_SECONDS = (60, 86_400)


def loaders_have_cores(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a machine does not run more data workers than it has cores."""
    config = estimates.config
    workers, ranks, cores = config.data.num_workers, config.ranks_per_node, config.resources.cpus_per_node
    if cores is None:
        yield from _loaders_of_unknown_cores(config, workers, ranks)
        return
    if workers * ranks <= cores:
        return
    fitting = max((cores - ranks) // ranks, 0)
    starters = "the only rank" if ranks == 1 else f"the {ranks:,} ranks"
    yield finding_of(
        config,
        "loaders_have_cores",
        "data.num_workers",
        f"num_workers({workers}) starts {amounts.counted(workers * ranks, 'data worker')} for {starters} of "
        f"a machine, but cpus_per_node is {cores}.",
        f"Set data.num_workers: {fitting}; reading samples needs only a fraction of a core.",
        Cost(words="time in which ranks wait for samples"),
    )


def _loaders_of_unknown_cores(config: RunConfig, workers: int, ranks: int) -> Iterator[Finding]:
    """Report more data workers per rank than a usual machine has hardware threads per GPU."""
    if workers > THREADS_OF_A_RANK:
        starters = "the only rank" if ranks == 1 else f"the {ranks:,} ranks"
        yield finding_of(
            config,
            "loaders_have_cores",
            "data.num_workers",
            f"num_workers({workers}) starts {workers * ranks} data workers for {starters} of a machine. "
            "resources.cpus_per_node is not set; machines usually have up to "
            f"{THREADS_OF_A_RANK} hardware threads per GPU.",
            "Set data.num_workers: 2, which is enough for most runs, or set resources.cpus_per_node so that "
            "the plan can check the number of workers.",
            level="note",
        )


def checkpoints_fit_the_disk(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the kept checkpoints fit the free space of this machine's disk.

    Large checkpoints are reported even if they fit.
    """
    config, disk = estimates.config, estimates.disk
    checkpoint, total = config.checkpoint, disk.checkpoints_bytes
    folder, free, present, needed = nearest_existing(output_root()), None, 0, 0
    if config.resources.nodes == 1 and folder.is_dir():
        free = shutil.disk_usage(folder).free
        present, needed = disk.room_for_checkpoints(RunDir.named(config.name))
    full = free is not None and needed > free
    many = disk.num_checkpoints > MANY_CHECKPOINTS and total > MANY_BYTES_OF_MANY
    if not (full or many or total > MANY_BYTES):
        return
    there = (
        f", but {display(output_root())} has only {amounts.size(free)} free"
        if full and free is not None
        else ""
    )
    if num_kept_for_ever(config) > checkpoint.keep_last:
        assert checkpoint.keep_every_steps is not None
        steps = amounts.counted(config.train_steps, "step")
        kept = f"keep_every_steps({checkpoint.keep_every_steps:,}) in a run of {steps} keeps "
        key, fewer = KEEP_EVERY, _sparser(config, checkpoint.keep_every_steps)
    else:
        kept, key = f"keep_last({checkpoint.keep_last}) keeps ", KEEP_LAST
        fewer = f"{KEEP_LAST}: {checkpoint.keep_last // 2}" if checkpoint.keep_last > 1 else ""
    if full and free is not None:
        fewer = words_of(disk_remedy(config, disk, present, free) or {})
    larger = f"a disk with {amounts.size(total)} of free space."
    fix = f"Set {fewer}, or use {larger}" if fewer else f"Use {larger}"
    yield finding_of(
        config,
        "checkpoints_fit_the_disk",
        key,
        f"{kept}up to {amounts.counted(disk.num_checkpoints, 'checkpoint')} of "
        f"{amounts.size(disk.checkpoint_bytes)}, including the one that is being written. In total, this is "
        f"{amounts.size(total)}{there}.",
        fix,
        Cost(num_bytes=total),
        "warning" if full or many else "note",
    )


def _sparser(config: RunConfig, every: int) -> str:
    """Return, as text, a keep_every_steps with which at most about ten checkpoints are kept permanently.

    `every` is the run's keep_every_steps. If the run already keeps no more than that, the text sets null,
    with which no checkpoint is kept permanently.
    """
    # keep_every_steps must be a multiple of the interval at which checkpoints are written.
    unit = config.checkpoint.save_interval_steps
    sparse = max(math.ceil(config.train_steps / 10 / unit), 1) * unit
    if sparse <= every:
        return f"{KEEP_EVERY}: null"
    return f"{KEEP_EVERY}: {sparse} to keep {amounts.counted(config.train_steps // sparse, 'checkpoint')}"


def local_checkpoints_are_apart(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that checkpoint.local_dir is on another disk than the run directory.

    Otherwise each checkpoint is stored twice on the same disk.
    """
    config = estimates.config
    if (local_dir := config.checkpoint.local_dir) is None or not local_dir.startswith("/"):
        return
    folder = local_folder(local_dir, 0, platform.node())
    # On other machines, the same path may be on another disk.
    if config.backend.kind != "local" and not folder.is_dir():
        return
    here, there = nearest_existing(folder), nearest_existing(output_root())
    if here.lstat().st_dev == there.lstat().st_dev:
        names = ("local_dir", "local_save_interval_steps", "local_copy_bytes_per_second")
        none: dict[str, None] = {f"checkpoint.{name}": None for name in names}
        yield finding_of(
            config,
            "local_checkpoints_are_apart",
            "checkpoint.local_dir",
            f"checkpoint.local_dir = {local_dir} is on the same file system as {display(output_root())}, so "
            "every checkpoint is written to this file system twice.",
            f"Set local_dir to a folder on each node's own disk, or set {words_of(differing(config, none))}.",
            Cost(words="a second write of every checkpoint"),
        )


def a_checkpoint_comes_before_the_end(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a long run saves a checkpoint before its end, so that it can be resumed."""
    config, local = estimates.config, local_saves(estimates.config)
    interval, steps = config.checkpoint.save_interval_steps, config.train_steps
    if config.mode != "full" or interval < steps or steps == 1 or estimates.hours < LONG_HOURS:
        return
    every = saves_every(config, max(steps // 10, 1))
    none, failure = "no checkpoint", "A failure before that step"
    if local:
        none, failure = "no checkpoint to the run directory", "A failure that loses a node's disk"
    yield finding_of(
        config,
        "a_checkpoint_comes_before_the_end",
        "checkpoint.save_interval_steps",
        f"save_interval_steps({interval:,}) writes {none} before the last of {steps:,} steps. {failure} "
        f"loses up to {amounts.duration(3600 * estimates.hours)} of training.",
        f"Set {SAVE_INTERVAL}: {every}." if every else "",
        Cost(words="all progress, if a node's disk is lost") if local else estimates.share(0.5),
    )


def best_is_looked_for_often(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that every save is at a step with a validation: keep_best considers only such checkpoints."""
    config = estimates.config
    checkpoint, evaluation = config.checkpoint, config.evaluation
    save, validate = checkpoint.save_interval_steps, evaluation.eval_interval_steps
    if checkpoint.keep_best and save % validate:
        both = math.lcm(save, validate)
        yield finding_of(
            config,
            "best_is_looked_for_often",
            "checkpoint.keep_best",
            "checkpoint.keep_best can keep only checkpoints of steps with a validation, but with "
            f"save_interval_steps({save}) and eval_interval_steps({validate}) a step has both a checkpoint "
            f"and a validation only every {both:,} steps.",
            "Set save_interval_steps to a multiple of eval_interval_steps.",
        )


def nvme_folder_is_here(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the NVMe folder exists on this machine.

    It may exist only on the machine that trains, so it is checked again at the start of the job.
    """
    config = estimates.config
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(config.parallel, name)
        if offload.device == "nvme" and offload.nvme_path and not Path(offload.nvme_path).is_dir():
            yield finding_of(
                config,
                "nvme_folder_is_here",
                f"parallel.{name}.nvme_path",
                f"parallel.{name}.nvme_path = {offload.nvme_path} does not exist on this machine. The run "
                "starts only if the folder exists on the machine that trains.",
                f"Create the folder on that machine, or set parallel.{name}.nvme_path to an existing folder.",
            )


def no_host_stays_unused(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the run uses every listed machine.

    A run uses only the first resources.nodes machines, also from a hostfile that several runs share.
    """
    config = estimates.config
    nodes, hosts = config.resources.nodes, config.backend.hosts.hosts
    unused = hosts[nodes:]
    if config.backend.kind != "hosts" or not unused:
        return
    fix = "Remove the unused machines."
    if more := _on_all_hosts(config, len(hosts)):
        words = " and ".join(f"{key}: {value}" for key, value in more.items())
        fix = f"Set {words} to use all machines, or remove the unused machines."
    named = ", ".join(unused[:MOST_NAMED]) + (" ..." if len(unused) > MOST_NAMED else "")
    yield finding_of(
        config,
        "no_host_stays_unused",
        "backend.hosts.hosts",
        f"backend.hosts.hosts lists {len(hosts)} machines, but resources.nodes is {nodes}, so the run does "
        f"not use {named}.",
        fix,
        Cost(words="idle machines"),
    )


def _on_all_hosts(config: RunConfig, nodes: int) -> dict[str, int]:
    """Return the changes with which the run uses `nodes` machines with the same number of ranks on each.

    Micro batches are made smaller if the batch requires it. Returns {} if the rules allow no such change.
    """
    replicas, rest = divmod(config.parallel.data_parallel_size * nodes, config.resources.nodes)
    if rest:
        return {}
    changes = {"resources.nodes": nodes, DATA: replicas}
    micro_batches = divisors(config.batch.micro_batch_size)
    smaller = ({**changes, MICRO_BATCH: size} for size in reversed(micro_batches[:-1]))
    return next((more for more in (changes, *smaller) if not find_problems(with_values(config, more))), {})


def device_trains_here(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that nbtrain can train on the device: the device table also lists devices for plans only."""
    config = estimates.config
    device = find_device(config.resources.gpu_type) if config.resources.device == "gpu" else None
    if device and device.vendor != "NVIDIA":
        yield finding_of(
            config,
            "device_trains_here",
            "resources.gpu_type",
            f"resources.gpu_type = {device.name} is a device from {device.vendor}. nbtrain can plan for this "
            "device, but trains only on NVIDIA GPUs and CPUs.",
            "To train with nbtrain, set another gpu_type.",
            Cost(words="the run, because nbtrain cannot train on this device"),
        )


def name_says_its_size(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a size in the run's name is the size of its model."""
    config = estimates.config
    sizes = list(sizes_in_name(config.name))
    parameters = count_parameters(config).total
    if not sizes or any(1 / NAME_FACTOR <= size / parameters <= NAME_FACTOR for size, _ in sizes):
        return
    words = " or ".join(dict.fromkeys(words for _, words in sizes))
    yield finding_of(
        config,
        "name_says_its_size",
        "name",
        f"The name {config.name} contains the size {words}, but the model has {parameters:,} parameters "
        f"({amounts.count(parameters)}).",
        "Correct the sizes of the model, or rename the run.",
        Cost(words="the training of a wrong model, if the name is right"),
    )


def sizes_in_name(name: str) -> Iterator[tuple[float, str]]:
    """Yield the parameter counts that a name may mean, as (number, text); for "gpt-1-3b", 1.3e9 and 3e9."""
    for number, unit in SIZE_IN_NAME.findall(name):
        factor = {"m": 1e6, "b": 1e9, "t": 1e12}[unit.lower()]
        readings = [number.replace("-", "."), *number.split("-")[1:]]
        yield from ((float(reading) * factor, f"{reading}{unit.upper()}") for reading in readings)


def timeout_is_in_seconds(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the time-out of collectives is in the usual range; other values suggest a mistaken unit."""
    config = estimates.config
    seconds = config.parallel.process_group_timeout_seconds
    least, most = USUAL_TIMEOUT_SECONDS
    if least <= seconds <= most:
        return
    guess, unit = (seconds / 1000, "milliseconds") if seconds > most else (seconds * 60, "minutes")
    effect = "a checkpoint that takes longer ends the run."
    if seconds > most:
        effect = "if a rank dies, the other ranks wait that long before the run ends."
    yield finding_of(
        config,
        "timeout_is_in_seconds",
        "parallel.process_group_timeout_seconds",
        f"process_group_timeout_seconds({seconds:g}) is {amounts.duration(seconds)}: {effect}",
        f"If you mean {seconds:g} {unit}, set process_group_timeout_seconds: {guess:g}. The default is 600.",
        Cost(
            words="idle GPUs after a rank is lost" if seconds > most else "the run, if a checkpoint is slow"
        ),
    )


def variables_have_one_owner(estimates: RunEstimates) -> Iterator[Finding]:
    """Report variables in backend.env that override a value that nbtrain or the scheduler sets."""
    for name, effect, fix, is_warning in replaced_values(estimates.config):
        yield finding_of(
            estimates.config,
            "variables_have_one_owner",
            f"backend.env.{name}",
            effect,
            fix,
            level="warning" if is_warning else "note",
        )


def pods_have_time_to_save(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that ranks have enough time to save before Kubernetes kills a terminating pod."""
    config, seconds = estimates.config, estimates.duration.save_seconds
    limit = config.backend.shutdown_timeout_seconds
    if config.backend.kind != "kubernetes" or config.mode != "full" or seconds is None or seconds <= limit:
        return
    yield finding_of(
        config,
        "pods_have_time_to_save",
        "backend.shutdown_timeout_seconds",
        f"shutdown_timeout_seconds({limit:g}) gives ranks {amounts.elapsed(limit)} to save when their pod is "
        f"terminated, but a save takes {amounts.elapsed(seconds)} ({estimates.duration.save_basis}). "
        f"Kubernetes kills a pod {int(limit) + POD_GRACE_SECONDS} s after it asks the pod to stop "
        "(terminationGracePeriodSeconds).",
        f"Set backend.shutdown_timeout_seconds: {math.ceil(SAVE_TIMES * seconds)}, which is {SAVE_TIMES:g} "
        "times the duration of a save.",
        Cost(words="all steps since the previous checkpoint whenever a pod is terminated"),
    )


MACHINE_RULES = (
    loaders_have_cores,
    checkpoints_fit_the_disk,
    a_checkpoint_comes_before_the_end,
    best_is_looked_for_often,
    local_checkpoints_are_apart,
    nvme_folder_is_here,
    no_host_stays_unused,
    device_trains_here,
    name_says_its_size,
    timeout_is_in_seconds,
    variables_have_one_owner,
    pods_have_time_to_save,
)
