"""torchrun for ranks that do not train: it starts them in 50 ms, because it does not import torch.

    python quick_torchrun.py --nproc-per-node 2 ... --no-python COMMAND      on one machine

It does what a supervisor relies on, like torchrun: each command has its own session and its variables; TERM
is passed on; if a command fails, the others get TERM, after --shutdown-timeout KILL, and the exit code is 1.
tests/jobs/supervisor/test_supervise.py has jobs under both.
"""

import argparse
import os
import signal
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--nnodes", "--master-addr", "--master-port", "--max-restarts"):
        parser.add_argument(option, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--shutdown-timeout", type=int, required=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    assert (options.nnodes, options.max_restarts) == ("1", "0")
    ranks = options.nproc_per_node
    same = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": options.master_addr,
        "MASTER_PORT": options.master_port,
    }
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    commands = [
        subprocess.Popen(
            options.command,
            env={**os.environ, **same, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(ranks)
    ]
    while not ended:
        codes = [command.poll() for command in commands]
        if any(codes):
            ended.append(signal.SIGTERM)
        elif None not in codes:
            return 0
        time.sleep(0.02)
    running = [command for command in commands if command.poll() is None]
    for command in running:
        os.killpg(command.pid, signal.SIGTERM)
    deadline = time.monotonic() + options.shutdown_timeout
    for command in running:
        try:
            command.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main())
