"""Checks of this machine before launch: data, folders, disk, memory, devices.

Rules that need only the configuration are in config/rules/check.py. All problems are reported together. Each
is either a mistake in the run's settings or a shortage on this machine.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

from nbtrain.base.errors import DataError, SubmitError, refuse
from nbtrain.base.files import is_read_only, nearest_existing
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import counted, size
from nbtrain.base.workspace import data_home, display, output_root, resolved_program, the_workspace
from nbtrain.config.arithmetic.attention_kernels import FLASH_GENERATION
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.fault_orders import VARIABLE, read_orders
from nbtrain.config.findings import missing_data, mistake, run_checks, shortage
from nbtrain.config.load.edits import with_values
from nbtrain.config.load.placeholders import placeholders_of
from nbtrain.config.rules.layout import FP8_CAPABILITY
from nbtrain.config.rules.wording import value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.notify_section import SCHEMES
from nbtrain.config.yaml_source import show
from nbtrain.dataset.blend import BlendFiles
from nbtrain.dataset.of_run import RunData
from nbtrain.dataset.pair_paths import MAKE_IT
from nbtrain.dataset.tokenizer_problem import tokenizer_problem
from nbtrain.dataset.views.contents import check_contents
from nbtrain.jobs.attempt.backend import backend_of
from nbtrain.jobs.checks.preflight_tools import (
    compiler_is_there,
    extensions_can_be_built,
    local_dir_is_ready,
    nvme_is_ready,
    packages_are_there,
)
from nbtrain.jobs.machine.device_needs import chosen_words
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.machine.shared_memory import too_little_here
from nbtrain.jobs.request.initial_weights import problems_of_weights
from nbtrain.jobs.request.launch import Launch
from nbtrain.jobs.request.own_code import findings_of_code
from nbtrain.planner.lint.remedies import (
    cheapest_remedy,
    disk_remedy,
    host_remedy,
    nvme_words,
    words_of,
)
from nbtrain.planner.memory import SPARE_FRACTION, least_memory

# A run is refused only if its estimated memory exceeds the available memory by more than this factor, because
# an estimate is not a measurement.
ESTIMATE_SLACK = 1.1
# Parts of a rank's memory that are smaller than this are not listed in the message.
LEAST_NAMED_BYTES = 50 << 20
# CPU flags for fp16 matrix products: oneDNN requires at least one of them.
FP16_FLAGS = ("avx512_fp16", "amx_fp16", "fphp", "asimdhp")


def preflight(launch: Launch, reads_data: bool = True) -> list[Finding]:
    """Return every problem that would keep the run from starting on its backend; [] if it can start.

    Without `reads_data`, the checks of checkpoints, weights, data and tasks (OF_TRAINING) are skipped.
    """
    checks = CHECKS if launch.config.backend.kind == "local" else SHARED_CHECKS
    if not reads_data:
        checks = tuple(check for check in checks if check not in OF_TRAINING)
    of_backend = backend_of(launch.config.backend.kind).findings
    return [*run_checks(checks, launch), *run_checks([of_backend], launch.config)]


def preflight_in_allocation(launch: Launch) -> list[Finding]:
    """Run the shared checks for a job that its scheduler has already started; the scheduler is not called."""
    return run_checks(SHARED_CHECKS, launch)


def refuse_to_start(launch: Launch, findings: Sequence[Finding], started: bool = False) -> None:
    """Raise SubmitError if preflight returned findings.

    `started` is True inside an allocation that has started.
    """
    end = "Nothing was started and nothing written."
    if any(finding.lacks == "data" for finding in findings):
        machines = "pods" if launch.config.backend.kind == "kubernetes" else "nodes"
        end = (
            f"The {machines} read data from {data_home()}: prepare it on a machine that mounts this folder. "
            f"{end}"
            if started
            else f"nbtrain looks for data in {data_home()}. {the_workspace()}\n{end}"
        )
    refuse(findings, SubmitError, f"{launch.config.name} cannot start here:", end)


def nothing_is_a_placeholder(launch: Launch) -> Iterator[Finding]:
    """Reject placeholders that were left as the image, volume or hosts, such as those in notebook 06."""
    yield from placeholders_of(launch.config)


def devices_suffice(launch: Launch) -> Iterator[Finding]:
    """Check that this machine has a GPU for every rank, or a CPU with enough cores for the ranks."""
    config, machine = launch.config, launch.machine
    resources = config.resources
    if resources.nodes > 1:
        yield shortage(
            config,
            "resources.nodes",
            f"the run needs {resources.nodes} machines, but backend `local` uses this machine only.",
            "Set backend.kind to hosts, slurm or kubernetes, or set resources.nodes=1 with a layout that "
            "fits one machine.",
        )
    if resources.device == "gpu":
        # If the queue's limit leaves too few GPUs, LocalBackend.findings() reports that.
        needed, present = config.world_size, len(machine.gpus) + machine.withheld_gpus
        if present < needed:
            yield shortage(
                config,
                "resources.gpus_per_node",
                f"the run needs {counted(needed, 'GPU')}, but {machine.host} has "
                f"{present}{chosen_words(config)}.",
                "Use a machine with enough GPUs, choose a smaller layout, or set resources.device=cpu for a "
                "trial.",
            )
        return
    if config.precision.dtype == "fp16" and machine.cpu_flags and machine.cpu_flags.isdisjoint(FP16_FLAGS):
        yield shortage(
            config,
            "precision.dtype",
            f"precision.dtype = fp16 on a CPU needs one of the CPU flags "
            f"{', '.join(FP16_FLAGS)}, but {machine.cpu} has none of them.",
            "Set precision.dtype=bf16 or fp32.",
        )
    ranks = config.world_size
    if ranks > 4 * machine.cores:
        yield shortage(
            config,
            "",
            f"the run starts {ranks} ranks, but {machine.host} has {counted(machine.cores, 'core')} for it, "
            "and at most 4 ranks per core are allowed: more ranks would mostly wait for each other.",
            "Use a machine with more cores, or a layout with fewer ranks.",
        )


def gpus_have_the_kernels(launch: Launch) -> Iterator[Finding]:
    """Check that the GPUs support the run's number format and attention kernels.

    GPUs that are missing from the device table are skipped here; the ranks check them.
    """
    config, machine = launch.config, launch.machine
    if config.resources.device != "gpu":
        return
    for name in dict.fromkeys(gpu.name for gpu in machine.gpus[: config.world_size]):
        if (device := find_device(name)) is None:
            continue
        has = f"{name} has compute capability {'.'.join(map(str, device.compute_capability))}"
        without_fp8 = device.compute_capability < FP8_CAPABILITY
        without_flash = FLASH_GENERATION not in device.flash_attention
        for key, value, lacks, oldest, instead in (
            ("precision.fp8", True, without_fp8, "9.0 (Hopper)", "false"),
            ("precision.dtype", "bf16", device.peak("bf16") is None, "8.0 (Ampere)", "fp16 or fp32"),
            ("model.attention_backend", "flash", without_flash, "8.0 (Ampere)", "auto"),
        ):
            if lacks and value_of(config, key) == value:
                needs = f"{key} = {show(value)} needs a GPU of compute capability {oldest} or newer; {has}."
                yield shortage(config, key, needs, f"Set {key}={instead}.")


def memory_suffices(launch: Launch) -> Iterator[Finding]:
    """Check that every rank's planned peak memory fits its GPU, or the host memory that CPU ranks share."""
    config, machine = launch.config, launch.machine
    estimate = least_memory(config)
    needed = estimate.total_bytes
    parts = ", ".join(
        f"{name} {size(part)}" for name, part in estimate.parts.items() if part >= LEAST_NAMED_BYTES
    )
    if config.resources.device == "cpu":
        ranks = config.world_size
        needed, present, where = (
            needed * ranks,
            machine.memory_bytes,
            f"{counted(ranks, 'rank')} on {machine.host}",
        )
    else:
        sizes = [
            (gpu.memory_bytes, gpu.name) for gpu in machine.gpus[: config.world_size] if gpu.memory_bytes
        ]
        if not sizes:
            return
        present, name = min(sizes)
        where = f"a rank on {name}"
    if needed > ESTIMATE_SLACK * present:
        limit = present // (config.world_size if config.resources.device == "cpu" else 1)
        # A remedy may use only the devices and the host memory of this machine.
        devices = len(machine.gpus) or config.world_size
        if remedy := cheapest_remedy(_on(machine, config), SPARE_FRACTION, limit, devices):
            fix = f"Set {remedy.words}; a rank then needs about {size(remedy.memory.total_bytes)}."
        else:
            fix = "No layout fits these devices: use a larger machine, more machines, or a smaller model."
        yield shortage(
            config,
            "",
            f"{where} will need about {size(needed)} of memory, but only {size(present)} is available"
            + (f" (per rank: {parts})." if parts else "."),
            fix,
        )


def _on(machine: Machine, config: RunConfig) -> RunConfig:
    """Return the configuration with this machine's host memory as memory_per_node_bytes."""
    return with_values(config, {"resources.memory_per_node_bytes": machine.memory_bytes})


def shared_memory_suffices(launch: Launch) -> Iterator[Finding]:
    """Check that this machine's /dev/shm is large enough for the batches of the data workers."""
    yield from too_little_here(launch.config, launch.machine.host)


def host_memory_suffices(launch: Launch) -> Iterator[Finding]:
    """Check that host memory can hold everything that the ranks offload and save asynchronously."""
    config, machine = launch.config, launch.machine
    estimate = least_memory(config)
    needed = estimate.total_host_bytes * min(config.ranks_per_node, config.world_size)
    if needed > machine.memory_bytes:
        parts = ", ".join(f"{name} {size(part)}" for name, part in estimate.host_parts.items() if part)
        if remedy := host_remedy(_on(machine, config)):
            less = size(remedy.memory.total_host_bytes)
            fix = f"Set {remedy.words}; a rank then needs {less} of host memory."
        else:
            nvme = nvme_words(_on(machine, config))
            fix = f"Use a machine with more memory{f', or set {nvme}' if nvme else ''}."
        yield shortage(
            config,
            "",
            f"{counted(config.ranks_per_node, 'rank')} on {machine.host} will need about {size(needed)} of "
            f"host memory, but only {size(machine.memory_bytes)} is available (per rank: {parts}).",
            fix,
        )


def notification_is_possible(launch: Launch) -> Iterator[Finding]:
    """Check the program in notify.command and the address in the variable that notify.url_variable names.

    This machine is checked because with backends local and hosts the supervisor runs here, and with Slurm the
    supervisor gets the environment of this machine. On Kubernetes nothing is checked, because a pod has the
    programs of its image.
    """
    config = launch.config
    notify = config.notify
    if config.backend.kind == "kubernetes":
        return
    yield from _program_is_there(config, "notify.command", notify.command)
    address = os.environ.get(notify.url_variable or "", "")
    if notify.url_variable and urlsplit(address).username is not None:
        yield mistake(
            config,
            "notify.url_variable",
            f"the address in {notify.url_variable} has a user name before its @, and nbtrain does not send "
            "user names.",
            "Use an address with the secret in its path or query, as webhooks do, or set notify.command.",
        )
    elif notify.url_variable and not address.startswith(SCHEMES):
        yield mistake(
            config,
            "notify.url_variable",
            f"the environment variable {notify.url_variable} must be set here to an address that begins "
            "with https:// or http://, and it is not.",
            f"Set it in the shell or kernel that submits: export {notify.url_variable}=https://...",
        )


def preemption_notice_is_possible(launch: Launch) -> Iterator[Finding]:
    """Check that the program in backend.preemption_notice exists, if the ranks run on this machine."""
    config = launch.config
    if config.backend.kind == "local":
        yield from _program_is_there(config, "backend.preemption_notice", config.backend.preemption_notice)


def _program_is_there(config: RunConfig, key: str, command: list[str]) -> Iterator[Finding]:
    if command and shutil.which(resolved_program(command[0])) is None:
        yield mistake(
            config,
            key,
            f"{key}: the program {command[0]!r} was not found.",
            "Set its path (absolute or relative to the workspace) or put it on PATH, and make it executable.",
        )


def fault_orders_are_understood(launch: Launch) -> Iterator[Finding]:
    """Check that NBTRAIN_FAULTS can be parsed and names only ranks that the run has."""
    config = launch.config
    if (text := config.backend.env.get(VARIABLE)) is None:
        return
    key = f"backend.env.{VARIABLE}"
    fix = "Correct it, or remove it to train without faults; docs/try-a-fault.md lists the faults."
    try:
        orders = read_orders(text)
    except ValueError as error:
        yield mistake(config, key, f"{key} {error}.", fix)
        return
    ranks = config.world_size
    if strange := sorted({order["rank"] for order in orders if order.get("rank", 0) >= ranks}):
        named = f"rank{'s' * (len(strange) > 1)} {', '.join(map(str, strange))}"
        has = f"ranks 0 to {ranks - 1}" if ranks > 1 else "rank 0"
        yield mistake(config, key, f"{key} names {named}, but the run has only {has}.", fix)


def output_is_writable(launch: Launch) -> Iterator[Finding]:
    """Check that the run directory can be created or is writable."""
    config = launch.config
    run = RunDir.named(config.name)
    folder = nearest_existing(run.path)
    if not folder.is_dir():
        yield mistake(
            config, "", f"{display(folder)} is a file, not a folder.", "Set NBTRAIN_OUTPUT to a folder."
        )
    elif is_read_only(folder):
        yield mistake(
            config,
            "",
            f"{display(run.path)} cannot be written: {display(folder)} is on a read-only disk.",
            "Mount the disk for writing, or set NBTRAIN_OUTPUT to a writable folder.",
        )
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield mistake(
            config,
            "",
            f"{display(run.path)} cannot be written: the permissions of {display(folder)} forbid it.",
            "Set NBTRAIN_OUTPUT to a writable folder, or change the permissions.",
        )


def disk_holds_checkpoints(launch: Launch) -> Iterator[Finding]:
    """Check that the disk has room for every checkpoint that is kept and for the one being written."""
    config = launch.config
    run = RunDir.named(config.name)
    folder = nearest_existing(run.path)
    if not folder.is_dir():
        return
    estimate = launch.needs.disk
    present, needed = estimate.room_for_checkpoints(run)
    free = shutil.disk_usage(folder).free
    if free < needed:
        there = f", besides the {size(present)} already there" if present else ""
        fewer = words_of(disk_remedy(config, estimate, present, free) or {})
        yield shortage(
            config,
            "",
            f"{display(output_root())}: the disk has {size(free)} free, but "
            f"{counted(estimate.num_checkpoints, 'checkpoint')} of {size(estimate.checkpoint_bytes)} (the "
            f"kept checkpoints and the one being written) and the logs need {size(needed)}{there}.",
            f"Free up space, {f'set {fewer}, ' if fewer else ''}or set NBTRAIN_OUTPUT to a folder on a "
            "larger disk.",
        )


NO_SOURCES = "Copy the dataset there, or set data.sources and run `nbtrain prepare` to make it."


def initial_weights_fit(launch: Launch) -> Iterator[Finding]:
    """Check that init_from's weights are complete and unchanged and fit the model and its tokenizer."""
    yield from problems_of_weights(launch.config, launch.weights)


def data_is_whole(launch: Launch) -> Iterator[Finding]:
    """Check the run's dataset and tokenizer.

    The .bin and .idx files must exist, have the sizes that the index states, and match their manifest and
    the run's vocabulary.
    """
    config, data = launch.config, launch.data
    dataset, tokenizer = data.dataset, data.tokenizer
    prepare = f"Run `nbtrain prepare {shlex.join(config.as_arguments)}` to make what is missing."
    # Data that another program prepared needs no tokenizer for training.
    if data.tokenizer_problem and config.data.sources:
        yield missing_data(config, "", data.tokenizer_problem.replace(MAKE_IT, ""), prepare)
    problem = data.dataset_problem
    if not problem and dataset is not None:
        problem = _problem_of_contents(config, data)
    if problem:
        # `nbtrain prepare` helps only with missing data. For other problems, such as damaged files, the
        # message itself names the fix.
        said = problem.replace(MAKE_IT, "")
        make_it = prepare if config.data.sources or config.data.blend else NO_SOURCES
        yield missing_data(config, "", said, "" if said == problem else make_it)
    if tokenizer and tokenizer.vocab_size > config.tokenizer.vocab_size:
        yield mistake(
            config,
            "tokenizer.vocab_size",
            f"tokenizer.vocab_size = "
            f"{config.tokenizer.vocab_size:,}, but "
            f"{display(tokenizer.directory)} has {tokenizer.vocab_size:,} entries.",
            f"Set tokenizer.vocab_size={tokenizer.vocab_size} or more, or choose another tokenizer.",
        )
    if dataset and isinstance(data.files, BlendFiles):
        try:
            data.files.check_tokenizer(config, dataset.manifest)
        except DataError as error:
            yield mistake(config, "", str(error))
    elif (
        tokenizer
        and dataset
        and (found := tokenizer_problem(dataset.manifest, tokenizer.directory, tokenizer.manifest))
    ):
        yield mistake(
            config,
            "",
            f"dataset {config.data.name}: {found.what}.",
            f"Use the tokenizer that the dataset was made with, or rebuild the dataset: run `nbtrain prepare "
            f"{shlex.join(config.as_arguments)} --force`.",
        )


def _problem_of_contents(config: RunConfig, data: RunData) -> str:
    """Return why an opened dataset cannot serve the run; "" if it can.

    Possible reasons: the dataset was made with other settings, its files have changed, or none of its tokens
    counts in the loss.
    """
    # Imported here because these modules need NumPy, which a run without data does not.
    from nbtrain.dataset.prepare.inputs import check_same_settings
    from nbtrain.dataset.samples.build import build_datasets, may_have_no_loss, refuse_without_loss

    assert data.dataset is not None
    manifest = data.dataset.manifest
    try:
        if config.data.sources and manifest.settings:
            check_same_settings(config, data.files, manifest)
        check_contents(data.files, manifest)
        if may_have_no_loss(config, data.dataset):
            refuse_without_loss(config, build_datasets(config, opened=data.dataset))
    except DataError as error:
        return str(error)
    return ""


def tasks_are_readable(launch: Launch) -> Iterator[Finding]:
    """Check that the files in evaluation.tasks exist and that each of their lines is a valid question."""
    config = launch.config
    if not config.evaluation.tasks:
        return
    from nbtrain.evaluation.of_run import task_problems

    for key, words, fix in task_problems(config, launch.data.tokenizer):
        yield mistake(config, key, f"{key} {words.rstrip('.')}.", fix)


def code_is_usable(launch: Launch) -> Iterator[Finding]:
    """Check the names and parameters of the functions in the file that `code` names."""
    yield from findings_of_code(launch.config)


CHECKS: tuple[Callable[[Launch], Iterator[Finding]], ...] = (
    devices_suffice,
    gpus_have_the_kernels,
    memory_suffices,
    host_memory_suffices,
    shared_memory_suffices,
    fault_orders_are_understood,
    notification_is_possible,
    preemption_notice_is_possible,
    output_is_writable,
    disk_holds_checkpoints,
    local_dir_is_ready,
    compiler_is_there,
    nvme_is_ready,
    extensions_can_be_built,
    packages_are_there,
    initial_weights_fit,
    data_is_whole,
    tasks_are_readable,
    code_is_usable,
)
SHARED_CHECKS = (
    nothing_is_a_placeholder,
    fault_orders_are_understood,
    notification_is_possible,
    output_is_writable,
    disk_holds_checkpoints,
    local_dir_is_ready,
    initial_weights_fit,
    data_is_whole,
    tasks_are_readable,
    code_is_usable,
)
"""Checks for every backend except `local`; they hold for all machines, because all see the same folders."""
OF_TRAINING = (disk_holds_checkpoints, initial_weights_fit, data_is_whole, tasks_are_readable)
"""Checks of the files that training reads and writes."""
