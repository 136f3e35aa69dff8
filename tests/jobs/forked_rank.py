"""Functions that forked ranks run in twin/test_fork_client.py."""

import os
import time
from pathlib import Path


def note(folder: str) -> int:
    """Write a file and exit with the rank's number as the exit code."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OWN")
    Path(folder, os.environ["RANK"]).write_text(" ".join(os.environ[name] for name in names))
    print("said by rank", os.environ["RANK"], flush=True)
    return int(os.environ["RANK"])


def reduce() -> int:
    """Sum a number over all ranks, which works only if the ranks form a process group."""
    import torch
    import torch.distributed as dist

    from nbtrain.parallel import startup

    # Not a port that an outgoing connection may take before rank 0 listens.
    assert 15_000 <= int(os.environ["MASTER_PORT"]) < 32_000
    world = startup.start("cpu", 600)
    value = torch.tensor(world.rank + 1.0, requires_grad=True)
    (value * 2).backward()
    total = value.detach() * value.grad
    dist.all_reduce(total)
    startup.finish()
    return int(total.item())


def fail_or_sleep() -> None:
    """Raise an error on rank 1, and sleep for an hour on the other ranks."""
    if os.environ["RANK"] == "1":
        raise ValueError("no more")
    time.sleep(3600)


def sleep() -> None:
    time.sleep(3600)
