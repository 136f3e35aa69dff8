"""Linux processes: death signals, orphans, and the marker of a job.

The tree of a job ends as follows, depending on which process dies first:

    supervisor  dies -> the launcher gets TERM (PR_SET_PDEATHSIG) -> it passes TERM on to the wrappers
    launcher    dies -> the wrappers get TERM                     -> they pass TERM on to their ranks, which
                                                                     save and leave
    wrapper     dies -> its rank gets KILL: no process would record how it ended
    any rank         -> carries NBTRAIN_JOB=<job id> in its environment, so that what is left can be found

Whether a process is still the same one, although process IDs are reused: ProcessIdentity
(base/run_directory/records.py).
Source of the constants: linux/prctl.h.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from nbtrain.base.process.parent_death import die_with_parent, prctl

JOB_MARKER = "NBTRAIN_JOB"
# Variable in addition to the marker, if an agent started the rank: agents may share a machine.
NODE_MARKER = "NBTRAIN_NODE"
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that it can be seen and reaped."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def child_setup(death_signal: int) -> Callable[[], None]:
    """Return a preexec_fn: the child gets `death_signal` when this process dies, even before the exec."""
    parent = os.getpid()

    def setup() -> None:
        die_with_parent(death_signal)
        if os.getppid() != parent:
            os._exit(128 + death_signal)

    return setup


def signal_name(number: int) -> str:
    """Return SIGKILL for 9; the number if it has no name."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def marked_pids(job_ids: Iterable[str], *also: str) -> list[int]:
    """Return the live processes, except this one, that have the marker of one of these jobs and all variables
    in `also`.

    Each of `also` is the name of a variable, or NAME=value.
    """
    wanted = {f"{JOB_MARKER}={job_id}".encode() for job_id in job_ids}
    exact = {variable.encode() for variable in also if "=" in variable}
    names = [f"{variable}=".encode() for variable in also if "=" not in variable]
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to another user: not ours either way
        variables = set(environment.split(b"\0"))
        if wanted.isdisjoint(variables) or not exact <= variables:
            continue
        if all(any(variable.startswith(name) for variable in variables) for name in names):
            found.append(int(entry.name))
    return sorted(found)


def children(pid: int) -> list[int]:
    """Return the children that a process's main thread started or adopted; [] if the process is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def process_state(pid: int) -> str:
    """Return the kernel's state letter: R running, S sleeping, D waiting for a device, T stopped, Z ended; X
    if the process is gone.
    """
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process; processes that are gone are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_marked(
    job_ids: Iterable[str],
    grace: float | Callable[[], bool],
    timeout_seconds: float = 10.0,
    also: Iterable[str] = (),
) -> list[int]:
    """Wait for processes with the marker to exit, then kill those that remain. Return the killed processes.

    `grace` is a number of seconds, or a function that says that the time is over. `also` narrows the marker,
    as in marked_pids().

    Raises TimeoutError if a killed process does not end: it may be waiting for a dead disk.
    """
    job_ids, also = list(job_ids), list(also)
    began = time.monotonic()
    over = grace if callable(grace) else lambda: time.monotonic() - began >= grace
    while (left := marked_pids(job_ids, *also)) and not over():
        reap_orphans()
        time.sleep(0.1)
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_seconds
    while left:
        # Repeated, because a process may have forked since the last look.
        send(left, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.05)
        reap_orphans()
        left = marked_pids(job_ids, *also)
        if left and time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} did not end {timeout_seconds:.0f} s after SIGKILL")
    return sorted(killed)


# Children that a Popen object waits for; reaping them here would steal their exit code.
_awaited: set[int] = set()


def start(
    command: Sequence[str], log: Path, death_signal: int | None = None, **popen: Any
) -> subprocess.Popen:
    """Start a child in a separate session that appends its output to `log`; `popen` is passed to Popen.

    It gets `death_signal` when this process dies. reap_orphans() leaves its exit code to the Popen object.
    """
    with log.open("ab") as stream:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            preexec_fn=None if death_signal is None else child_setup(death_signal),
            **popen,
        )
    keep_exit_code(child)
    return child


def keep_exit_code(child: subprocess.Popen) -> None:
    """Make reap_orphans() leave a child's exit code to its Popen object."""
    _awaited.add(child.pid)


def exit_code_is_read(child: subprocess.Popen) -> None:
    """Forget a child that has ended: its process ID may be used again, by an orphan."""
    _awaited.discard(child.pid)


def reap_orphans() -> None:
    """Collect adopted children that have ended. Does nothing in a process that adopts none."""
    adopts = ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    if not adopts.value:
        return
    for pid in set(children(os.getpid())) - _awaited:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
