"""Linux processes: death signals, orphans, and a job's marker.

A job's process tree ends as follows, depending on which process dies first:

    supervisor dies    the launcher gets TERM (PR_SET_PDEATHSIG) and passes it on to the wrappers
    launcher dies      the wrappers get TERM and pass it on to their ranks, which save and exit
    wrapper dies       its rank gets KILL, because no process could record how the rank ended

Every rank has NBTRAIN_JOB=<job id> in its environment, so that remaining processes can be found. Process ids
are reused; ProcessIdentity (base/run_directory/records.py) tells whether a process is still the same. The
constants are from linux/prctl.h.
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
# Variable with the node's number, for ranks started by an agent, because agents may share a machine.
NODE_MARKER = "NBTRAIN_NODE"
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that it can be found and reaped."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def child_setup(death_signal: int) -> Callable[[], None]:
    """Return a preexec_fn by which a child gets `death_signal` when this process dies, even before exec."""
    parent = os.getpid()

    def setup() -> None:
        die_with_parent(death_signal)
        if os.getppid() != parent:
            os._exit(128 + death_signal)

    return setup


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL for 9, or "signal <number>" if it has no name."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def marked_pids(job_ids: Iterable[str], *also: str) -> list[int]:
    """Return the pids of live processes with the marker of one of these jobs, except this process.

    `also` are environment variables, each as NAME or NAME=value; only processes that have all of them count.
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
            continue  # the process has ended or belongs to another user, so it is not one of the job's
        variables = set(environment.split(b"\0"))
        if wanted.isdisjoint(variables) or not exact <= variables:
            continue
        if all(any(variable.startswith(name) for variable in variables) for name in names):
            found.append(int(entry.name))
    return sorted(found)


def children(pid: int) -> list[int]:
    """Return the pids of the children that a process's main thread started or adopted; [] if it is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def process_state(pid: int) -> str:
    """Return the kernel's letter for a process's state.

    R: running; S: sleeping; D: waiting for a device; T: stopped; t: stopped by a debugger; Z: ended; X: gone.
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
    """Wait for processes with the marker to exit, kill those that remain, and return the killed pids.

    `grace` is a number of seconds, or a function that returns whether the time is over. `also` selects
    processes as in marked_pids(). Raises TimeoutError if a killed process does not end, for example because
    it waits for a dead disk.
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
        # The signal is repeated, because a process may have forked since the last check.
        send(left, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.05)
        reap_orphans()
        left = marked_pids(job_ids, *also)
        if left and time.monotonic() > deadline:
            named = f"process{'es' * (len(left) > 1)} {', '.join(map(str, left))}"
            raise TimeoutError(f"{named} did not end within {timeout_seconds:.0f} s after SIGKILL")
    return sorted(killed)


# Pids of children for which a Popen object waits; reaping them here would take away their exit code.
_awaited: set[int] = set()


def start(
    command: Sequence[str], log: Path, death_signal: int | None = None, **popen: Any
) -> subprocess.Popen:
    """Start a child in a separate session, with its output appended to `log`.

    The child gets `death_signal` when this process dies. reap_orphans() leaves its exit code to the returned
    Popen object. `popen` are additional arguments of Popen.
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
    """Forget a child that has ended, because an orphan may get its process id."""
    _awaited.discard(child.pid)


def reap_orphans() -> None:
    """Collect adopted children that have ended. Does nothing in a process that does not adopt orphans."""
    adopts = ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    if not adopts.value:
        return
    for pid in set(children(os.getpid())) - _awaited:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
