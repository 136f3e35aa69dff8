"""Two hosts on one machine: network namespaces on a bridge, each with its own processes and sshd.

Needs root, and Debian's openssh-server, openssh-client, pdsh and iproute2. All names contain the creating
process's id, so that the next pair finds and removes what a crash has left.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from nbtrain.jobs.machine import processes
from tests.waiting import wait_until

NAMES = ("hosta", "hostb")
PROGRAMS = ("ip", "unshare", "sshd", "ssh", "ssh-keygen", "pdsh")
OURS = re.compile(r"nbt(\d+)([ab]?)")
ETC = Path("/etc/netns")
# sshd refuses to start without this folder.
PRIVILEGES = Path("/run/sshd")

# Arguments: name, sshd's configuration, a control group or "", pairs of a folder and its mount point.
BOOT = """\
hostname "$0" || exit 1
configuration=$1; group=$2; shift 2
[ -z "$group" ] || echo 0 >"$group/cgroup.procs" || exit 1
while [ $# -gt 0 ]; do mount --rbind "$1" "$2" || exit 1; shift 2; done
exec "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -f "$configuration"
"""

SSHD = """\
ListenAddress {address}
Port 22
HostKey {folder}/host-{name}
AuthorizedKeysFile {folder}/authorized
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
MaxStartups 100
PrintMotd no
"""

SSH = """\
Host {name}
  HostName {address}
  User root
"""

SSH_OF_ALL = """\
Host *
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/{known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def missing() -> str:
    """Return the reason why hosts cannot be created on this machine; "" if they can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    debian = "Debian: openssh-server openssh-client pdsh iproute2"
    if absent:
        return f"not installed: {', '.join(absent)} ({debian})"
    trial = f"nbt{os.getpid()}"
    made = _call("ip", "netns", "add", trial)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    _call("ip", "netns", "del", trial)
    return ""


class HostPair:
    """The hosts hosta and hostb, which ssh reaches with the configuration
    `ssh_config`; each can be switched off.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.ssh_config = folder / "ssh_config"
        self._bridge = f"nbt{os.getpid()}"
        self._net = f"10.213.{random.randrange(256)}"
        self._hosts: dict[str, subprocess.Popen] = {}

    def start(self) -> "HostPair":
        """Create the bridge, the namespaces and keys; start sshd on both hosts and wait until it answers."""
        remove_leftovers()
        self.folder.mkdir(parents=True, exist_ok=True)
        PRIVILEGES.mkdir(exist_ok=True)
        self._make_keys()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name in NAMES:
            self._make_namespace(name)
            self.start_host(name)
        for name in NAMES:
            self.wait_for(name)
        return self

    def address(self, name: str) -> str:
        return f"{self._net}.{NAMES.index(name) + 2}"

    def start_host(self, name: str, over: Mapping[str, str] | None = None, group: str = "") -> None:
        """Boot a host: a separate process tree whose first process is sshd.

        `over` mounts folders over others for this host only; `group` is a control group for all its
        processes.
        """
        mounts = [part for place, folder in (over or {}).items() for part in (folder, place)]
        with (self.folder / f"sshd-{name}.out").open("ab") as log:
            self._hosts[name] = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._namespace(name)),
                    *("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"),
                    *("sh", "-c", BOOT, name, self._sshd_config(name), group, *mounts),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.child_setup(signal.SIGKILL),
            )

    def kill_host(self, name: str) -> None:
        """Switch a host off: all its processes are killed at once."""
        host = self._hosts.pop(name)
        host.kill()
        host.wait()

    def link(self, name: str, up: bool) -> None:
        """Connect or disconnect a host's network link."""
        _ip("link", "set", self._namespace(name), "up" if up else "down")

    def limit(self, name: str, rate: str) -> None:
        """Limit what a host sends to a rate such as "200mbit" (a token bucket of tc)."""
        _call("tc", "-n", self._namespace(name), "qdisc", "del", "dev", "eth0", "root")
        shape = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms")
        _call("tc", "-n", self._namespace(name), "qdisc", "add", "dev", "eth0", *shape, check=True)

    def wait_for(self, name: str) -> None:
        """Wait until a host's sshd answers."""

        def story() -> str:
            log = (self.folder / f"sshd-{name}.out").read_text()
            return f"{name} does not answer: {self.call(name, 'hostname').stderr}\n{log}"

        wait_until(lambda: self.call(name, "hostname").returncode == 0, story, pause_seconds=0.1)

    def call(self, name: str, *arguments: str) -> subprocess.CompletedProcess:
        """Run a command on a host by ssh."""
        return _call("ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", name, *arguments)

    def config_with(self, **changes: str) -> Path:
        """Write another ssh configuration; `key` and `known` name the files with the user's key and the
        hosts' keys.
        """
        path = self.folder / f"ssh_config-{'-'.join(changes.values())}"
        path.write_text(self._ssh_text(**changes))
        return path

    def stop(self) -> None:
        """Switch both hosts off and remove everything that start() created."""
        for name in list(self._hosts):
            self.kill_host(name)
        _remove(self._bridge)

    def _namespace(self, name: str) -> str:
        return self._bridge + name[-1]

    def _sshd_config(self, name: str) -> str:
        return str(self.folder / f"sshd-{name}.conf")

    def _make_keys(self) -> None:
        for name in ("user", "stranger", *(f"host-{one}" for one in NAMES)):
            (self.folder / name).unlink(missing_ok=True)
            _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name), check=True)
        public = {name: (self.folder / f"{name}.pub").read_text() for name in ("user", "stranger")}
        (self.folder / "authorized").write_text(public["user"])
        keys = {name: (self.folder / f"host-{name}.pub").read_text() for name in NAMES}
        known = "".join(f"{self.address(name)} {key}" for name, key in keys.items())
        (self.folder / "known").write_text(known)
        (self.folder / "unknown").write_text("")
        changed = "".join(f"{self.address(name)} {public['stranger']}" for name in NAMES)
        (self.folder / "changed").write_text(changed)
        self.ssh_config.write_text(self._ssh_text())

    def _ssh_text(self, key: str = "user", known: str = "known") -> str:
        hosts = "".join(SSH.format(name=name, address=self.address(name)) for name in NAMES)
        return hosts + SSH_OF_ALL.format(folder=self.folder, key=key, known=known)

    def _make_namespace(self, name: str) -> None:
        namespace = self._namespace(name)
        Path(self._sshd_config(name)).write_text(
            SSHD.format(address=self.address(name), folder=self.folder, name=name)
        )
        etc = ETC / namespace
        etc.mkdir(parents=True)
        known = "".join(f"{self.address(one)} {one}\n" for one in NAMES)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        # Otherwise every connection of gloo waits for a name server that cannot be reached.
        (etc / "resolv.conf").write_text("")
        _ip("netns", "add", namespace)
        _ip("link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", namespace, "master", self._bridge, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "link", "set", "eth0", "up")


def remove_leftovers() -> None:
    """Remove what host pairs of ended processes have left behind."""
    known = {entry.name for entry in Path("/sys/class/net").iterdir()}
    for folder in (ETC, Path("/run/netns")):
        known |= {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    for name in known:
        if (ours := OURS.fullmatch(name)) and not Path(f"/proc/{ours[1]}").exists():
            _remove(f"nbt{ours[1]}")


def _remove(bridge: str) -> None:
    for letter in "ab":
        _call("ip", "link", "del", bridge + letter)
        _call("ip", "netns", "del", bridge + letter)
        shutil.rmtree(ETC / (bridge + letter), ignore_errors=True)
    _call("ip", "link", "del", bridge)
    with contextlib.suppress(OSError):
        ETC.rmdir()


def _path() -> str:
    """Return a PATH that includes sshd and ip, which are often missing from a user's PATH."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _ip(*arguments: str) -> None:
    _call("ip", *arguments, check=True)


def _call(*arguments: str, check: bool = False) -> subprocess.CompletedProcess:
    answer = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if check and answer.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {answer.stderr.strip()}")
    return answer
