"""Runs TensorBoard and ends it after some hours without a request, so that a pod releases its memory.

It is run as `python -m nbtrain.lab.server.idle_tensorboard`. The kernel's table of TCP connections shows
whether there were requests: TensorBoard closes each connection after its response, and the table lists the
connection for another minute.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtrain.base.process.signals import hear_signals

TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# ESTABLISHED and TIME_WAIT in the kernel's table (include/net/tcp_states.h).
USED = ("01", "06")
POLL_SECONDS = 30.0
END_SECONDS = 10.0


def connections(port: int, tables: Sequence[Path] = TCP_TABLES) -> int:
    """Count the connections to a local port that are open or were closed within the last minute."""
    found = 0
    for table in tables:
        if not table.is_file():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            found += fields[3] in USED and int(fields[1].rpartition(":")[2], 16) == port
    return found


def serve(
    command: list[str],
    idle_seconds: float,
    looks: Callable[[], int],
    every_seconds: float = POLL_SECONDS,
) -> int:
    """Run TensorBoard until it ends or is idle, and return its exit code, or 0 if it was idle.

    `looks` returns the number of connections to TensorBoard. TensorBoard is ended once the number has been 0
    for `idle_seconds`.
    """
    process = subprocess.Popen(command)
    last = time.monotonic()
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(every_seconds)
            if looks():
                last = time.monotonic()
            elif time.monotonic() - last >= idle_seconds:
                print(f"no page has been open for {idle_seconds / 3600:g} h: ending TensorBoard", flush=True)
                return 0
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run TensorBoard with the given options and --idle-hours."""
    parser = argparse.ArgumentParser(description="Run TensorBoard until it is no longer used.")
    parser.add_argument("--idle-hours", type=float, default=24.0)
    parser.add_argument("--port", type=int, default=6006)
    options, rest = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "tensorboard.main", "--port", str(options.port), *rest]
    return serve(command, options.idle_hours * 3600, lambda: connections(options.port))


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
