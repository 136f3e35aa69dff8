"""The launcher of one machine's ranks: start a wrapper for each rank, and end all wrappers if one fails.

    python -m nbtrain.jobs.node.rank_launcher --ranks 2 --first-rank 0 --shutdown-timeout 60 COMMAND ...

    launcher (own session)
      COMMAND of rank 0, of rank 1, ...  each in a separate session, with RANK and LOCAL_RANK

If a command fails or cannot be started, or if the launcher gets TERM, all commands get TERM and, after
--shutdown-timeout seconds, KILL. The exit code is 0 if all commands ended with 0 by themselves, else 1.

torchrun does the same, but it first imports torch, which takes about four seconds of CPU in each attempt. Its
restarts are not used, because gloo finds stale addresses after them. Its rendezvous of agents is not needed:
rank 0 is the server at MASTER_ADDR (init_method env:// of torch.distributed). The launcher imports only the
standard library.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from nbtrain.base.process.signals import hear_signals

# Seconds between two checks of the commands, as in torchrun (--monitor-interval).
POLL_SECONDS = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the commands until all have ended, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nbtrain.jobs.node.rank_launcher")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--first-rank", type=int, required=True)
    parser.add_argument("--shutdown-timeout", type=float, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)

    asked_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked_to_end.append(received))
    # These signals are meant for the ranks. The launcher receives them only before the first rank is started,
    # and without a handler they would end it.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, frame: None)
    wrappers: list[subprocess.Popen] = []
    for local in range(options.ranks):
        environment = {**os.environ, "RANK": str(options.first_rank + local), "LOCAL_RANK": str(local)}
        try:
            wrappers.append(subprocess.Popen(options.command, env=environment, start_new_session=True))
        except OSError as error:  # there are no free process ids, or there is no memory
            print(
                f"rank {options.first_rank + local} cannot be started: {error}", file=sys.stderr, flush=True
            )
            end(wrappers, options.shutdown_timeout)
            return 1
    while not asked_to_end:
        codes = [wrapper.poll() for wrapper in wrappers]
        if any(codes):
            break
        if None not in codes:
            return 0
        time.sleep(POLL_SECONDS)
    end(wrappers, options.shutdown_timeout)
    return 1


def end(wrappers: Sequence[subprocess.Popen], timeout_seconds: float) -> None:
    """Send TERM to the wrappers that are still running, and KILL to those that do not end in time."""
    running = [wrapper for wrapper in wrappers if wrapper.poll() is None]
    for wrapper in running:
        os.killpg(wrapper.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    for wrapper in running:
        try:
            wrapper.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(wrapper.pid, signal.SIGKILL)
            wrapper.wait()


if __name__ == "__main__":
    hear_signals()
    sys.exit(main(sys.argv[1:]))
