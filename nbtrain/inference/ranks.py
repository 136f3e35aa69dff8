"""The tensor-parallel ranks of one engine. Rank 0 is the engine's process and starts the other ranks.

    python -m nbtrain.inference.ranks      another rank; reads {"rank", "size", "store", ...} from stdin

Rank 0 sends orders to the other ranks over gloo; on GPUs, activations are exchanged over NCCL. The other
ranks end when rank 0 ends, and rank 0 ends when any other rank ends. All ranks are on this machine:
collectives use the loopback interface, and the ranks find each other through a file in a folder that only
this user can open.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.inference.loaded import load
from nbtrain.inference.runner import Runner
from nbtrain.parallel.groups import Group

# Ranks may wait a long time for the next order while no requests arrive.
WAIT = timedelta(days=3650)
NOT_ENDED = "a tensor-parallel rank of the model ended unexpectedly; its last output is above."


class GlooOrders:
    """A channel for lists of integers from rank 0 to all other ranks."""

    def send(self, numbers: list[int]) -> None:
        """Send an order. Only rank 0 calls this."""
        dist.broadcast(torch.tensor([len(numbers)]), 0)
        dist.broadcast(torch.tensor(numbers), 0)

    def receive(self) -> list[int]:
        """Receive rank 0's next order. All other ranks call this."""
        length = torch.empty(1, dtype=torch.long)
        dist.broadcast(length, 0)
        numbers = torch.empty(int(length), dtype=torch.long)
        dist.broadcast(numbers, 0)
        return numbers.tolist()


class Ranks:
    """The ranks other than rank 0, which rank 0 starts and waits for."""

    def __init__(self, size: int, request: dict[str, Any]):
        """Start the ranks. `request` has the fields that main() reads, such as run_dir, step and dtype."""
        self._folder = tempfile.TemporaryDirectory(prefix="nbtrain-ranks-")
        store = str(Path(self._folder.name) / "store")
        self._is_ending = False
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "nbtrain.inference.ranks"], stdin=subprocess.PIPE, stdout=sys.stderr
            )
            for _ in range(1, size)
        ]
        for rank, process in enumerate(self.processes, 1):
            asked = {**request, "rank": rank, "size": size, "store": store}
            assert process.stdin is not None
            process.stdin.write(json.dumps(asked).encode())
            process.stdin.close()
            threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        self.group = join(0, size, store)

    def _watch(self, process: subprocess.Popen) -> None:
        process.wait()
        if not self._is_ending:
            # The other ranks may wait indefinitely in a collective, so end this process.
            print(NOT_ENDED, file=sys.stderr, flush=True)
            os._exit(1)

    def will_end(self) -> None:
        """Announce that the ranks will end, so that their exit is not treated as a failure."""
        self._is_ending = True

    def wait(self) -> None:
        """Wait until the ranks have ended."""
        leave()
        for process in self.processes:
            process.wait()
        self._folder.cleanup()


def join(rank: int, size: int, store: str) -> Group:
    """Join the process group of all ranks, and return it. Every rank must call this.

    `store` is the path of the file through which the ranks find each other.
    """
    # Without this, gloo looks up the host's name, which may wait for DNS.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=WAIT)
    return Group(tuple(range(size)), rank, dist.group.WORLD)


def leave() -> None:
    """Destroy the process group after a barrier. Without the barrier, gloo's threads may abort a process."""
    dist.barrier()
    dist.destroy_process_group()


def device_of(rank: int) -> torch.device:
    """Return the device on which a rank computes."""
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def main() -> int:
    """Run one of the other ranks, which executes rank 0's orders."""
    die_with_parent(signal.SIGKILL)
    request = json.load(sys.stdin)
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    group = join(request["rank"], request["size"], request["store"])
    device = device_of(request["rank"])
    loaded = load(
        RunDir(request["run_dir"]), request["step"], request["dtype"], group, device, is_checked=True
    )
    Runner(loaded.model, request["slots"], request["positions"], GlooOrders()).follow()
    leave()
    return 0


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
