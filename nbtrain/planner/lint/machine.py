"""Findings about machines and disks: loader processes, checkpoints, folders, devices, the run's name."""

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

# A machine of eight H100 has two CPUs of 56 cores, each with two threads.
THREADS_OF_A_RANK = 28
# From this number of kept checkpoints on, the plan reports their bytes.
MANY_BYTES = 2**40
MANY_CHECKPOINTS = 10
MANY_BYTES_OF_MANY = 10 * 2**30
# Hours from which on a run needs a checkpoint before its end.
LONG_HOURS = 2
# "1-3b", "1.3B", "125m" are sizes in names. A size that differs by more than this factor is another model's.
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9])((?:\d+[.-])?\d+)([mbt])(?![a-z0-9])", re.IGNORECASE)
NAME_FACTOR = 1.5
# Number of machines that a message lists.
MOST_NAMED = 8
# A save takes longer while other saves keep the disk busy than it does alone.
SAVE_TIMES = 2.0
# A collective that waits for over a day waits for a dead rank; a limit of a minute breaks slow checkpoints.
USUAL_TIMEOUT_SECONDS = (60, 86_400)


def loaders_have_cores(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the loader processes of a machine's ranks do not exceed its cores."""
    config = estimates.config
    workers, ranks, cores = config.data.num_workers, config.ranks_per_node, config.resources.cpus_per_node
    if cores is None:
        yield from _loaders_of_unknown_cores(config, workers, ranks)
        return
    if workers * ranks <= cores:
        return
    fitting = max((cores - ranks) // ranks, 0)
    yield finding_of(
        config,
        "loaders_have_cores",
        "data.num_workers",
        f"num_workers({workers}) for each of {amounts.counted(ranks, 'rank')} is {workers * ranks} processes "
        f"on cpus_per_node({cores}).",
        f"Set data.num_workers: {fitting}; reading samples takes a fraction of a core.",
        Cost(words="time, because ranks wait for samples"),
    )


def _loaders_of_unknown_cores(config: RunConfig, workers: int, ranks: int) -> Iterator[Finding]:
    """Report more loader processes than a usual machine has cores, if the number of cores is not known."""
    if workers > THREADS_OF_A_RANK:
        yield finding_of(
            config,
            "loaders_have_cores",
            "data.num_workers",
            f"num_workers({workers}) for each of {amounts.counted(ranks, 'rank')} is {workers * ranks} "
            f"processes on a machine, and resources.cpus_per_node is not set; up to {THREADS_OF_A_RANK} for "
            "each GPU are usual.",
            "Set data.num_workers: 2, which feeds most runs, or resources.cpus_per_node, which is compared.",
            level="note",
        )


def checkpoints_fit_the_disk(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the kept checkpoints fit the free disk space of this machine; report large amounts."""
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
    there = f"; {display(output_root())} has {amounts.size(free)} free" if full and free is not None else ""
    if num_kept_for_ever(config) > checkpoint.keep_last:
        assert checkpoint.keep_every_steps is not None
        kept = f"keep_every_steps({checkpoint.keep_every_steps:,}) of {config.train_steps:,} steps keeps "
        key, fewer = KEEP_EVERY, _sparser(config, checkpoint.keep_every_steps)
    else:
        kept, key = f"keep_last({checkpoint.keep_last}) keeps ", KEEP_LAST
        fewer = f"{KEEP_LAST}: {checkpoint.keep_last // 2}" if checkpoint.keep_last > 1 else ""
    if full and free is not None:
        fewer = words_of(disk_remedy(config, disk, present, free) or {})
    larger = f"ake a disk with {amounts.size(total)} free."
    fix = f"Set {fewer}, or t{larger}" if fewer else f"T{larger}"
    yield finding_of(
        config,
        "checkpoints_fit_the_disk",
        key,
        f"{kept}up to {amounts.counted(disk.num_checkpoints, 'checkpoint')} of "
        f"{amounts.size(disk.checkpoint_bytes)}, the one "
        f"being written included: {amounts.size(total)}{there}.",
        fix,
        Cost(num_bytes=total),
        "warning" if full or many else "note",
    )


def _sparser(config: RunConfig, every: int) -> str:
    """Return, as text, the keep_every_steps with which about ten checkpoints are kept for good; null if the
    run already keeps no more than that.
    """
    # Multiples of the interval at which checkpoints are written.
    unit = config.checkpoint.save_interval_steps
    sparse = max(math.ceil(config.train_steps / 10 / unit), 1) * unit
    if sparse <= every:
        return f"{KEEP_EVERY}: null"
    return f"{KEEP_EVERY}: {sparse} for {config.train_steps // sparse} of them"


def local_checkpoints_are_apart(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that checkpoint.local_dir is on another disk than the run directory; else each checkpoint is
    stored twice there, without a gain.
    """
    config = estimates.config
    if (local_dir := config.checkpoint.local_dir) is None or not local_dir.startswith("/"):
        return
    folder = local_folder(local_dir, 0, platform.node())
    # On other machines the path may be another disk's.
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
            f"checkpoint.local_dir = {local_dir} is on the same file system as {display(output_root())}: "
            "every checkpoint is written there twice.",
            f"Name a folder on each node's own disk, or set {words_of(differing(config, none))}.",
            Cost(words="twice the writing"),
        )


def a_checkpoint_comes_before_the_end(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a long run saves a checkpoint before its end; it can only resume from one."""
    config, local = estimates.config, local_saves(estimates.config)
    interval, steps = config.checkpoint.save_interval_steps, config.train_steps
    if config.mode != "full" or interval < steps or steps == 1 or estimates.hours < LONG_HOURS:
        return
    every = saves_every(config, max(steps // 10, 1))
    none, failure = "no checkpoint", "a failure before that"
    if local:
        none, failure = "none to the run directory", "a failure that takes a node's disk with it"
    yield finding_of(
        config,
        "a_checkpoint_comes_before_the_end",
        "checkpoint.save_interval_steps",
        f"save_interval_steps({interval:,}) writes {none} before the last of {steps:,} steps: {failure} "
        f"loses up to {amounts.duration(3600 * estimates.hours)}.",
        f"Set {SAVE_INTERVAL}: {every}." if every else "",
        Cost(words="a run that begins again after the loss of a node") if local else estimates.share(0.5),
    )


def best_is_looked_for_often(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that saves are at steps with a validation: only those checkpoints can be the best one."""
    config = estimates.config
    checkpoint, evaluation = config.checkpoint, config.evaluation
    save, validate = checkpoint.save_interval_steps, evaluation.eval_interval_steps
    if checkpoint.keep_best and save % validate:
        both = math.lcm(save, validate)
        yield finding_of(
            config,
            "best_is_looked_for_often",
            "checkpoint.keep_best",
            "checkpoint.keep_best = true: a checkpoint and a validation fall on the same step only every "
            f"{both:,} steps, with save_interval_steps({save}) and eval_interval_steps({validate}).",
            "Make save_interval_steps a multiple of eval_interval_steps.",
        )


def nvme_folder_is_here(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the NVMe folder exists here. It may exist only on the machine that trains, so the launch
    checks it again.
    """
    config = estimates.config
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(config.parallel, name)
        if offload.device == "nvme" and offload.nvme_path and not Path(offload.nvme_path).is_dir():
            yield finding_of(
                config,
                "nvme_folder_is_here",
                f"parallel.{name}.nvme_path",
                f"parallel.{name}.nvme_path = {offload.nvme_path}: no such folder on this machine. The run "
                "is not started unless the folder exists on the machine that trains.",
            )


def no_host_stays_unused(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that no named machine stays unused: a run uses only the first resources.nodes of them.

    This also holds for a hostfile, which all runs often share.
    """
    config = estimates.config
    nodes, hosts = config.resources.nodes, config.backend.hosts.hosts
    unused = hosts[nodes:]
    if config.backend.kind != "hosts" or not unused:
        return
    fix = "Remove the unused machines."
    if more := _on_all_hosts(config, len(hosts)):
        words = " and ".join(f"{key}: {value}" for key, value in more.items())
        fix = f"Set {words}, for as many ranks on each, or remove the unused machines."
    named = ", ".join(unused[:MOST_NAMED]) + (" ..." if len(unused) > MOST_NAMED else "")
    yield finding_of(
        config,
        "no_host_stays_unused",
        "backend.hosts.hosts",
        f"backend.hosts.hosts names {len(hosts)} machines, but resources.nodes = {nodes}: "
        f"{named} will be idle.",
        fix,
        Cost(words="machines that are paid for and idle"),
    )


def _on_all_hosts(config: RunConfig, nodes: int) -> dict[str, int]:
    """Return the changes with which the run has as many ranks on each of `nodes` machines as on each of its
    own, with smaller micro batches if the batch needs that; {} if the rules allow none.
    """
    replicas, rest = divmod(config.parallel.data_parallel_size * nodes, config.resources.nodes)
    if rest:
        return {}
    changes = {"resources.nodes": nodes, DATA: replicas}
    micro_batches = divisors(config.batch.micro_batch_size)
    smaller = ({**changes, MICRO_BATCH: size} for size in reversed(micro_batches[:-1]))
    return next((more for more in (changes, *smaller) if not find_problems(with_values(config, more))), {})


def device_trains_here(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the device can train here: the device table also lists devices of other makers, for plans
    only.
    """
    config = estimates.config
    device = find_device(config.resources.gpu_type) if config.resources.device == "gpu" else None
    if device and device.vendor != "NVIDIA":
        yield finding_of(
            config,
            "device_trains_here",
            "resources.gpu_type",
            f"resources.gpu_type {device.name} is {device.vendor}'s: nbtrain plans for it, and trains on "
            "NVIDIA GPUs and CPUs.",
            "Set another gpu_type to train with nbtrain.",
            Cost(words="a run that was never tried on this device"),
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
        f"The name {config.name} says {words}, but the model has {parameters:,} parameters "
        f"({amounts.count(parameters)}).",
        "Correct the model's sizes, or the name.",
        Cost(words="a run of another model"),
    )


def sizes_in_name(name: str) -> Iterator[tuple[float, str]]:
    """Yield the parameter counts that a name can mean, as numbers and text: for "gpt-1-3b" 1.3e9 and 3e9."""
    for number, unit in SIZE_IN_NAME.findall(name):
        factor = {"m": 1e6, "b": 1e9, "t": 1e12}[unit.lower()]
        readings = [number.replace("-", "."), *number.split("-")[1:]]
        yield from ((float(reading) * factor, f"{reading}{unit.upper()}") for reading in readings)


def timeout_is_in_seconds(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a collective's time-out is minutes to hours; a smaller or larger value suggests a mistaken
    unit.
    """
    config = estimates.config
    seconds = config.parallel.process_group_timeout_seconds
    least, most = USUAL_TIMEOUT_SECONDS
    if least <= seconds <= most:
        return
    guess = (
        f"{seconds / 1000:g} if milliseconds are meant" if seconds > most else f"{seconds * 60:g} for minutes"
    )
    yield finding_of(
        config,
        "timeout_is_in_seconds",
        "parallel.process_group_timeout_seconds",
        f"process_group_timeout_seconds({seconds:g}) is {amounts.duration(seconds)}; "
        + (
            "a hanging collective would be noticed then."
            if seconds > most
            else "a slow checkpoint takes longer."
        ),
        f"Write {guess}; the default is 600.",
        Cost(
            words="GPUs that wait for a rank that is gone" if seconds > most else "a run that stops too early"
        ),
    )


def variables_have_one_owner(estimates: RunEstimates) -> Iterator[Finding]:
    """Report the variables of backend.env that replace a value of nbtrain or of the scheduler."""
    for name, said, fix, costs in replaced_values(estimates.config):
        yield finding_of(
            estimates.config,
            "variables_have_one_owner",
            f"backend.env.{name}",
            said,
            fix,
            level="warning" if costs else "note",
        )


def pods_have_time_to_save(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a terminating pod gives its ranks enough time to save before Kubernetes kills them."""
    config, seconds = estimates.config, estimates.duration.save_seconds
    limit = config.backend.shutdown_timeout_seconds
    if config.backend.kind != "kubernetes" or config.mode != "full" or seconds is None or seconds <= limit:
        return
    yield finding_of(
        config,
        "pods_have_time_to_save",
        "backend.shutdown_timeout_seconds",
        f"shutdown_timeout_seconds({limit:g}) is the time that ranks have to save when their pod is ended, "
        f"and a save takes {amounts.elapsed(seconds)} ({estimates.duration.save_basis}). Kubernetes kills "
        f"the pod {int(limit) + POD_GRACE_SECONDS} s after asking it to end (terminationGracePeriodSeconds).",
        f"Set backend.shutdown_timeout_seconds: {math.ceil(SAVE_TIMES * seconds)}, "
        f"{SAVE_TIMES:g} times as long.",
        Cost(words="all steps since the previous checkpoint, whenever a pod is ended"),
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
