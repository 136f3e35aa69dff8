"""The machines that a run uses, from its YAML or from a DeepSpeed hostfile."""

import re
from pathlib import Path

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Cost, Finding
from nbtrain.base.text import amounts
from nbtrain.base.workspace import resolve
from nbtrain.config.findings import finding_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.backend_section import HOST_RULE

# Line of a hostfile, with a name that DeepSpeed's launcher, its shell commands and pdsh pass on unchanged.
LINE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)\s+slots=(\d+)\s*(?:#.*)?")


def findings_of_hostfile(config: RunConfig) -> list[Finding]:
    """Return the problems that a submission would find in the run's hostfile.

    Returns [] if the run has no hostfile, or if the file is not on this machine.
    """
    given = config.backend.hosts.hostfile
    if config.backend.kind != "hosts" or given is None or not resolve(given).is_file():
        return []
    try:
        hosts_of(config)
    except ConfigError as error:
        return [hostfile_finding(config, error)]
    return []


def hostfile_finding(config: RunConfig, error: ConfigError) -> Finding:
    """Return the finding for an error raised by hosts_of()."""
    key = "backend.hosts.hostfile"
    return finding_of(
        config,
        "hostfile",
        key,
        str(error).removeprefix(f"{config.where(key)}: "),
        cost=Cost(fatal=True),
        level="error",
    )


def hosts_of(config: RunConfig) -> list[str]:
    """Return the names of a run's machines, in the order of their node numbers.

    Raises ConfigError if the hostfile is invalid or names too few machines.
    """
    section, nodes = config.backend.hosts, config.resources.nodes
    if section.hostfile is None:
        return list(section.hosts[:nodes])
    path, where = resolve(section.hostfile), config.where("backend.hosts.hostfile")
    try:
        slots = read_hostfile(path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if len(slots) < nodes:
        raise ConfigError(
            f"{where}: {section.hostfile} names {amounts.counted(len(slots), 'machine')}, but "
            f"resources.nodes = {nodes}. Add machines, or lower resources.nodes."
        )
    chosen = list(slots)[:nodes]
    small = ", ".join(
        f"{name} with slots={slots[name]}" for name in chosen if slots[name] < config.ranks_per_node
    )
    if small:
        raise ConfigError(
            f"{where}: {section.hostfile} lists {small}, but the run needs {config.ranks_per_node} slots on "
            "each machine. Raise slots if the machine has the devices, or use fewer ranks per machine."
        )
    return chosen


def read_hostfile(path: Path) -> dict[str, int]:
    """Return {name: slots} in the order of the file. Raises ConfigError with every invalid line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise ConfigError(f"{path} cannot be read: {reason}.") from None
    found: dict[str, int] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = LINE.fullmatch(text)
        if match is None:
            rule = f" A name has {HOST_RULE}." if re.match(r"\S+\s+slots=\d+", text) else ""
            words = f"{text[:80]!r} does not describe a machine."
            fix = (
                "Write `name slots=8`: a host name or an IPv4 address, and the largest number of ranks there."
            )
            problems.append((number, words, fix + rule))
        elif match[1] in found:
            words = f"{match[1]} is already listed in an earlier line."
            problems.append((number, words, "Remove one of the two lines."))
        else:
            found[match[1]] = int(match[2])
    findings = (
        Finding("error", "hostfile", "", f"{path}:{number}", words, fix, FATAL)
        for number, words, fix in problems
    )
    refuse(findings, ConfigError)
    return found


def hostfile_text(hosts: list[str]) -> str:
    """Return the text of a hostfile for DeepSpeed's launcher, with one slot per host for its node agent."""
    return "".join(f"{host} slots=1\n" for host in hosts)
