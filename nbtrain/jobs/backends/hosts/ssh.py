"""Run a small program on all machines of a run in parallel by ssh, and collect each output or failure."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.workspace import resolve
from nbtrain.config.sections.backend_section import HostsConfig
from nbtrain.jobs.machine.node_address import NUMBER_VARIABLES

CONNECT_SECONDS = 15
# Largest number of machines that are contacted at the same time.
AT_ONCE = 64
# Exit code of ssh itself, if it could not connect or lost the connection.
SSH_FAILED = 255
# (pattern in ssh's output, problem, fix). {host}, {options} and {known} are filled in.
TROUBLES = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "has a different host key than the one that is known on this machine",
        "If the host was reinstalled, remove the old key (`ssh-keygen -R {known}`) and log in once by hand. "
        "Otherwise, another machine may be intercepting the connection.",
    ),
    (
        r"[Hh]ost key is known|Host key verification failed",
        "has a host key that is not known on this machine",
        "Log in once by hand (`ssh{options} {host}`) and verify the key, or add it with ssh-keyscan.",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "does not accept any ssh key of this user",
        "Put your public key there (`ssh-copy-id{options} {host}`); a job cannot enter a password.",
    ),
    (
        r"Could not resolve hostname",
        "is a name that this machine cannot resolve",
        "Correct the name, or add it to /etc/hosts or to ssh's configuration.",
    ),
    (
        r"Connection refused",
        "is reachable, but nothing listens on its ssh port",
        "Start sshd there, or set backend.hosts.ssh_port.",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        f"did not respond within {CONNECT_SECONDS} s",
        "Check that the host is switched on and that no firewall blocks ssh.",
    ),
)


@dataclass(frozen=True)
class RemoteOutput:
    """A machine's output, or the reason why there is no output."""

    host: str
    code: int | None
    """The program's exit code; 255 if ssh itself failed, and None after a timeout."""
    output: str
    errors: str
    by_hand: str = ""
    """Options for port and configuration file that a user types between `ssh` and the host.

    The text begins with a space, or is "".
    """
    port: int | None = None
    """Port of sshd; None stands for the port in ssh's own configuration."""

    @property
    def trouble(self) -> tuple[str, str]:
        """The problem and its fix, as (problem, fix), if ssh itself failed; ("", "") if it did not fail."""
        if self.code is None:
            return (
                f"{self.host} did not respond in time",
                "Check whether the host is overloaded or its disk hangs.",
            )
        if self.code != SSH_FAILED:
            return "", ""
        for pattern, words, fix in TROUBLES:
            if re.search(pattern, self.errors):
                # known_hosts writes a host with a port other than 22 in brackets.
                known = self.host if self.port in (None, 22) else f"'[{self.host}]:{self.port}'"
                filled = fix.format(host=self.host, options=self.by_hand, known=known)
                return f"{self.host} {words}", filled
        said = f"ssh to {self.host} failed: {last_line(self.errors)}"
        return said, f"Run `ssh{self.by_hand} {self.host} true` by hand to see the error."


def last_line(text: str) -> str:
    """Return the last line that is not empty; "no output" if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def ssh_options(section: HostsConfig) -> list[str]:
    """Return the options for every ssh call; they prevent prompts and detect a dead connection."""
    return [
        "-oBatchMode=yes",
        f"-oConnectTimeout={CONNECT_SECONDS}",
        f"-oServerAliveInterval={section.server_alive_interval_seconds}",
        f"-oServerAliveCountMax={section.server_alive_count_max}",
        *(["-F", str(resolve(section.ssh_config))] if section.ssh_config else []),
        *([f"-oPort={section.ssh_port}"] if section.ssh_port else []),
    ]


def _by_hand(section: HostsConfig) -> str:
    """Return the ssh options that a user must type, such as " -F FILE -p 2299"; "" if there are none."""
    options = ["-F", str(resolve(section.ssh_config))] if section.ssh_config else []
    options += ["-p", str(section.ssh_port)] if section.ssh_port else []
    return f" {shlex.join(options)}" if options else ""


def python_of(section: HostsConfig) -> str:
    """Return the path of Python, which is the same on every machine."""
    return section.python or sys.executable


def run_everywhere(
    section: HostsConfig,
    hosts: Sequence[str],
    program: Path,
    arguments: Iterable[str] = (),
    variables: Iterable[str] = (),
    timeout_seconds: float = 60.0,
) -> list[RemoteOutput]:
    """Run a local Python file on every host, and return the hosts' outputs in the order of `hosts`.

    The program's environment contains `variables` (NAME=value), and the host's position in `hosts` as
    NBTRAIN_NODE_RANK.
    """
    arguments, variables = list(arguments), list(variables)
    text = program.read_text(encoding="utf-8")
    login = _by_hand(section), section.ssh_port

    def ask(numbered: tuple[int, str]) -> RemoteOutput:
        number, host = numbered
        named = [*variables, f"{NUMBER_VARIABLES[0]}={number}"]
        command = ["env", *named, python_of(section), "-", *arguments]
        # ssh passes the command through one shell, so it is quoted once.
        call = ["ssh", *ssh_options(section), "--", host, shlex.join(command)]
        try:
            done = subprocess.run(
                call,
                input=text,
                capture_output=True,
                # A host may print anything at log-in, in any encoding.
                encoding="utf-8",
                errors="replace",
                timeout=timeout_seconds,
            )
        except subprocess.TimeoutExpired:
            return RemoteOutput(host, None, "", "", *login)
        except OSError as error:
            return RemoteOutput(host, SSH_FAILED, "", f"ssh cannot be started here: {error.strerror}", *login)
        return RemoteOutput(host, done.returncode, done.stdout, done.stderr, *login)

    with ThreadPoolExecutor(min(AT_ONCE, len(hosts)) or 1) as pool:
        return list(pool.map(ask, enumerate(hosts)))
