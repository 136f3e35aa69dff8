"""Checks of a run's hosts, on all hosts at once, before anything starts."""

import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.files import nearest_existing
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import counted, size
from nbtrain.base.version import __version__
from nbtrain.base.workspace import (
    DATA,
    OUTPUT,
    WORKSPACE,
    data_home,
    display,
    output_root,
    resolve,
    workspace,
)
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.hosts.ssh import RemoteOutput, last_line, python_of, run_everywhere
from nbtrain.jobs.machine.device_needs import chosen_gpus, chosen_words
from nbtrain.jobs.machine.environment import package_version
from nbtrain.jobs.machine.hostfile import hostfile_finding, hosts_of
from nbtrain.jobs.machine.node_disk import NodeDisk, unfit_disk
from nbtrain.jobs.machine.shared_memory import too_little
from nbtrain.planner.budget.disk import local_bytes

PROBE = Path(__file__).with_name("probe.py")
# Limit in seconds for checking all hosts in parallel; Python starts slowly from a slow shared disk.
PROBE_SECONDS = 120.0
# Limit for machines that have responded before. It is shorter, because the supervisor gives no sign of life
# while it waits.
COUNT_SECONDS = 45.0
# Largest allowed difference between clocks: job ids and the times of checkpoints come from several machines.
CLOCK_SECONDS = 60.0
# Free bytes required in the temporary folder, where torch and DeepSpeed write sockets and small files.
SCRATCH_BYTES = 250_000_000
PROGRAMS = {"pdsh": ("pdsh", "pdsh"), "openmpi": ("mpirun", "openmpi-bin")}
# Daemons of Open MPI 4 and 5.
OPEN_MPI_DAEMONS = ("orted", "prted")
# Launchers pass these paths through a shell unquoted.
PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+=:@-]+")
# Exit codes of a shell that cannot find Python, or cannot execute it.
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems on this machine, or if there are none, the problems on the hosts."""
    found = list(problems_here(config))
    try:
        hosts = hosts_of(config)
    except ConfigError as error:
        found.append(hostfile_finding(config, error))
    yield from found
    if not found:
        yield from on_hosts(config, hosts)


def problems_here(config: RunConfig) -> Iterator[Finding]:
    """Check the programs and files that this machine needs to reach the hosts."""
    section = config.backend.hosts
    program, package = PROGRAMS[section.launcher]
    other = next(launcher for launcher in PROGRAMS if launcher != section.launcher)
    for name, debian in ((program, package), ("ssh", "openssh-client")):
        if shutil.which(name) is None:
            yield mistake(
                config,
                "backend.hosts.launcher",
                f"{name}, which starts the run on its hosts, is not installed on this machine.",
                f"Install {name} (Debian: {debian})"
                + (f", or set backend.hosts.launcher to {other}." if name == program else "."),
            )
    if section.ssh_config is not None and not resolve(section.ssh_config).is_file():
        yield mistake(
            config,
            "backend.hosts.ssh_config",
            f"backend.hosts.ssh_config = {section.ssh_config}: this file does not exist.",
            "Correct backend.hosts.ssh_config, or remove it to use ~/.ssh/config.",
        )
    python = python_of(section)
    if not os.access(python, os.X_OK):
        yield mistake(
            config,
            "backend.hosts.python",
            f"this machine has no executable {python}. DeepSpeed's launcher needs Python under the same "
            "path on the submitting machine and on every host.",
            "Install Python under this path, or set backend.hosts.python to a path that all machines have.",
        )
    paths = [("backend.hosts.python", python)]
    if section.ssh_config is not None:
        paths.append(("backend.hosts.ssh_config", str(resolve(section.ssh_config))))
    for key, path in paths:
        if not PLAIN_PATH.fullmatch(path):
            yield mistake(
                config,
                key,
                f"{key} = {path!r} contains spaces or characters that pdsh cannot pass on.",
                "Use a path that consists of letters, digits and . _ - + = : @ / only.",
            )


def usable_devices(config: RunConfig) -> dict[str, int]:
    """Return {host: number of usable GPUs, or of ranks on CPU}.

    An unusable host has the number 0, and the reason is printed to the supervisor's log. Raises ConfigError
    if the hostfile is invalid.
    """
    found = {}
    for host, answer, problems in looked_at(config, hosts_of(config), COUNT_SECONDS):
        for problem in problems:
            print(f"{host} is not used: {problem}", flush=True)
        gpus = answer.get("gpus")
        most = config.ranks_per_node if gpus is None else min(len(gpus), config.ranks_per_node)
        found[host] = 0 if problems else most
    return found


def on_hosts(config: RunConfig, hosts: list[str]) -> Iterator[Finding]:
    """Yield the problems on each host, including two host names for the same machine."""
    known: dict[str, str] = {}
    for host, found, problems in looked_at(config, hosts, PROBE_SECONDS):
        yield from problems
        if not found:
            continue
        yield from _gpus(config, host, found)
        machine = f"{found['host']} {found['boot_id']}"
        if machine in known:
            yield mistake(
                config,
                _hosts_key(config),
                f"{_hosts_key(config)}: {known[machine]} and {host} are two names of the same "
                f"machine ({found['host']}).",
                "List each machine only once; its agent starts all its ranks.",
            )
        known.setdefault(machine, host)


def looked_at(
    config: RunConfig, hosts: list[str], seconds: float
) -> list[tuple[str, dict[str, Any], list[Finding]]]:
    """Check all hosts in parallel, and return (host, output of its probe, its problems) for each.

    Missing GPUs are not among the problems.
    """
    folder = nearest_existing(output_root())
    if not folder.is_dir():
        folder = folder.parent  # preflight reports the file that is in the way
    token = folder / f".nbtrain-hosts-{secrets.token_hex(8)}"
    secret = secrets.token_hex(16)
    folders = [str(workspace()), str(folder), str(data_home())]
    asked = {
        "folders": [path for path in folders if Path(path).is_dir()],
        "token": str(token),
        "device": config.resources.device,
        "gpus": chosen_gpus(config)[1],
        "interface": config.backend.hosts.network_interface,
        # Other modes write no checkpoints.
        "local_dir": config.checkpoint.local_dir if config.mode == "full" else None,
        "run": str(RunDir.named(config.name).path),
        "daemons": _daemons(config),
    }
    python_path = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if os.environ.get("PYTHONPATH") else []
    try:
        token.write_text(secret, encoding="utf-8")
    except OSError:
        # jobs/checks/preflight.py reports that the output folder cannot be written.
        return []
    try:
        before = time.time()
        answers = run_everywhere(
            config.backend.hosts, hosts, PROBE, [json.dumps(asked)], python_path, seconds
        )
        after = time.time()
    finally:
        with contextlib.suppress(OSError):
            token.unlink()
    looked = []
    for answer in answers:
        found, problem = _read(config, answer)
        problems = (
            [problem]
            if problem is not None
            else [
                *_software(config, answer.host, found),
                *_daemon(config, answer.host, found),
                *_folders(config, answer.host, found, secret, token.parent),
                *_network(config, answer.host, found),
                *_local_disk(config, answer.host, found),
                *_shared_memory(config, answer.host, found),
                *_clock(config, answer.host, found, before, after),
            ]
        )
        looked.append((answer.host, found, problems))
    return looked


def _hosts_key(config: RunConfig) -> str:
    """Return the configuration field in which the run names its machines."""
    return "backend.hosts.hostfile" if config.backend.hosts.hostfile else "backend.hosts.hosts"


def _read(config: RunConfig, answer: RemoteOutput) -> tuple[dict[str, Any], Finding | None]:
    """Return (output of the probe, None), or ({}, problem) if the host could not be checked."""
    key = _hosts_key(config)
    words, fix = answer.trouble
    if words:
        return {}, mistake(config, key, f"{key}: {words}.", fix)
    python = python_of(config.backend.hosts)
    if answer.code in (NOT_FOUND, NOT_EXECUTABLE):
        return {}, mistake(
            config,
            key,
            f"{key}: {answer.host} has no {python}. Every host needs the same Python as this machine, "
            "under the same path.",
            "Install Python there or on a shared disk, or set backend.hosts.python to a path that all "
            "machines have.",
        )
    try:
        return json.loads(answer.output.splitlines()[-1]), None
    except (ValueError, IndexError):
        said = last_line(answer.errors or answer.output)
        return {}, mistake(
            config,
            key,
            f"{key}: {answer.host} could not be checked: {said} (exit code {answer.code}).",
            f"Run `ssh{answer.by_hand} {answer.host} {python} --version` by hand; the version must be "
            "the only output.",
        )


def _software(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    here = {
        "Python": platform.python_version(),
        "torch": package_version("torch"),
        "deepspeed": package_version("deepspeed"),
        "nbtrain": __version__,
    }
    there = {"Python": found["python"], **found["versions"]}
    for name, version in here.items():
        if there.get(name) != version:
            has = f"has {name} {there[name]}" if there.get(name) else f"has no {name}"
            yield mistake(
                config,
                _hosts_key(config),
                f"{_hosts_key(config)}: {host} {has}, but this machine has {name} {version}. All "
                "ranks of a run need the same versions.",
                "Use one environment on a shared disk, or install the same versions on that host.",
            )


def _daemons(config: RunConfig) -> list[str]:
    """Return the programs that mpirun may start on each host; [] for pdsh.

    Each program is listed by name and by its path in mpirun's own folder.
    """
    if config.backend.hosts.launcher != "openmpi":
        return []
    folder = Path(shutil.which("mpirun") or "/usr/bin/mpirun").parent
    return [*OPEN_MPI_DAEMONS, *(str(folder / name) for name in OPEN_MPI_DAEMONS)]


def _daemon(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    if _daemons(config) and found.get("daemon") is False:
        yield mistake(
            config,
            "backend.hosts.launcher",
            f"backend.hosts.launcher = openmpi: mpirun needs {' or '.join(OPEN_MPI_DAEMONS)} on {host} to "
            f"start the run, and neither is on the PATH that `ssh {host} env` shows.",
            "Install Open MPI there (Debian: openmpi-bin) and add its bin/ folder to that PATH, or set "
            "backend.hosts.launcher to pdsh.",
        )


def _another_folder(variable: str) -> str:
    """Return the fix for a folder that a host does not see; it names the variable that sets the folder."""
    decides = variable if os.environ.get(variable) else WORKSPACE
    fix = f"or set {decides} to a folder that all machines see."
    return f"Mount the shared disk there under the same path, {fix}"


def _folders(
    config: RunConfig, host: str, found: dict[str, Any], secret: str, folder: Path
) -> Iterator[Finding]:
    variables = {str(data_home()): DATA, str(folder): OUTPUT, str(workspace()): WORKSPACE}
    for path in found["missing"]:
        fix = _another_folder(variables.get(path, WORKSPACE))
        yield mistake(config, "", f"{host} does not see the folder {path}, which the run uses.", fix)
    if str(folder) in found["missing"]:
        return
    if found["token"] != secret:
        yield mistake(
            config,
            "",
            f"{host} has a different folder {folder}: a file written on this machine does not appear there, "
            "but all ranks must share the run directory.",
            _another_folder(OUTPUT),
        )
    elif not found["writable"]:
        yield mistake(
            config,
            "",
            f"{host} has no permission to write to {display(folder)}.",
            "Change the folder's permissions, or mount its disk for writing.",
        )
    if found["scratch_free"] < SCRATCH_BYTES:
        yield shortage(
            config,
            "",
            f"{host}: the disk of {found['scratch']} has {size(found['scratch_free'])} free, but a run needs "
            f"{size(SCRATCH_BYTES)} for temporary files.",
            "Free up space there, or set TMPDIR there to a folder on a larger disk.",
        )


def _network(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    place = found.get("place", {})
    if trouble := place.get("trouble"):
        # The agent's message often begins with the machine's name.
        said = trouble if trouble.startswith(f"{host}:") else f"{host}: {trouble}"
        yield mistake(config, "backend.hosts.network_interface", said)
    elif config.resources.nodes > 1 and place.get("address", "").startswith("127."):
        yield mistake(
            config,
            "",
            f"{host} has only a loopback IPv4 address, which no other machine can reach.",
            "Bring up its network, or set backend.hosts.network_interface.",
        )


def _gpus(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    gpus = found.get("gpus")
    if gpus is not None and len(gpus) < config.ranks_per_node:
        yield shortage(
            config,
            "resources.gpus_per_node",
            f"the run needs {counted(config.ranks_per_node, 'GPU')} on each machine, but {host} has "
            f"{len(gpus)}{chosen_words(config)}.",
            "Use machines with enough GPUs, or lower resources.gpus_per_node.",
        )


def _shared_memory(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    """Check that the host's /dev/shm is large enough for the batches of the data workers."""
    if (free_bytes := found.get("shared_memory")) is not None:
        yield from too_little(config, free_bytes, host)


def _local_disk(config: RunConfig, host: str, found: dict[str, Any]) -> Iterator[Finding]:
    """Check that checkpoint.local_dir is writable on the host and that its disk has enough space."""
    if (disk := found.get("local_disk")) is not None:
        yield from unfit_disk(config, NodeDisk(**disk), host, local_bytes(config))


def _clock(
    config: RunConfig, host: str, found: dict[str, Any], before: float, after: float
) -> Iterator[Finding]:
    off = max(before - found["time"], found["time"] - after)
    if off > CLOCK_SECONDS:
        yield mistake(
            config,
            "",
            f"the clock of {host} differs from this machine's by {off:.0f} s, but at most "
            f"{CLOCK_SECONDS:g} s is allowed.",
            "Synchronize the clock there (chrony or systemd-timesyncd).",
        )
