"""End the processes that carry a job's marker on a host, and no others; run there with `python -`.

    python - JOB_ID GRACE_SECONDS AGENTS_SECONDS

The agent gets TERM. It makes its ranks save and kills those that take too long, so it has AGENTS_SECONDS to
exit. If the host has no agent, the ranks get TERM and have GRACE_SECONDS. Then the remaining processes are
killed. The program prints how many processes it found, how many it killed and how many are left. It uses only
the standard library.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARKER = b"NBTRAIN_AGENT_JOB="
# Marker of a rank, which its agent asks to exit.
RANK = b"NBTRAIN_JOB="
# DeepSpeed's launcher process on each host. On TERM it would kill all its children; it exits by itself after
# the agent.
LAUNCHER = b"deepspeed.launcher"
KILL_SECONDS = 10.0


def marked(job_id):
    """Return {pid: (its variables, its command)} for all processes with the marker, except this process."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if MARKER + job_id.encode() in variables:
            found[int(name)] = (variables, command)
    return found


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def wait(job_id, seconds, then=None):
    """Wait at most `seconds` until no process is left, and return the processes that remain.

    `then` is called repeatedly with the processes that remain at that time.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = marked(job_id)
        if not left or time.monotonic() >= deadline:
            return left
        if then is not None:
            then(left)
        time.sleep(0.1)


def main(job_id, grace_seconds, agents_seconds):
    there = marked(job_id)
    agents = [
        pid
        for pid, (variables, command) in there.items()
        if LAUNCHER not in command and not any(variable.startswith(RANK) for variable in variables)
    ]
    if grace_seconds > 0:
        # On TERM, an agent makes its ranks save. If there is no agent, the ranks get TERM directly.
        send(agents or there, signal.SIGTERM)
    left = wait(job_id, agents_seconds if agents else grace_seconds)
    killed = len(left)
    # The signal is repeated, because a process may have forked since the last check.
    left = wait(job_id, KILL_SECONDS, lambda some: send(some, signal.SIGKILL))
    print(len(there), killed, len(left))
    if left:
        # The process that ran this command shows the user the last line.
        many = f"{len(left)} processes of the job do" if len(left) > 1 else "1 process of the job does"
        print(f"{many} not exit (perhaps an NFS server hangs)", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
