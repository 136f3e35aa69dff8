"""Checks that need several ranks. Many checks share one launch, because starting ranks takes longer than the
checks.

A test file defines functions check_<behavior>(). They run on every rank of one gloo process group, in the
order of the file; a check fails if it fails on any rank. The ranks are forked from a process that has loaded
torch and DeepSpeed but has computed nothing (the fixture fork_server). CHECKS says which of them run on how
many ranks:

    CHECKS = {2: ranks.names(globals())}

    @ranks.each(CHECKS)
    def test_on_ranks(outcome, size, check):
        assert not outcome(size, check), outcome(size, check)
"""

import functools
import importlib
import os
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from nbtrain.proof.fork_client import ForkServer

REPOSITORY = Path(__file__).parents[2]
# For a machine that is busy with other work; ranks that wait for a failed rank are killed long before.
TIMEOUT_SECONDS = 600


def names(module: dict) -> list[str]:
    """Return the names of the check functions in the globals() of a test file."""
    return [name for name in module if name.startswith("check_")]


def each(checks: Mapping[int, Sequence[str]]) -> pytest.MarkDecorator:
    """Return the mark that runs a test with each number of ranks and each of its checks."""
    cases = [(size, name) for size, names in checks.items() for name in names]
    return pytest.mark.parametrize(("size", "check"), cases)


def launch(
    server: ForkServer, test_file: str, size: int, folder: Path, checks: Sequence[str]
) -> dict[str, str]:
    """Run the checks and return {check: ""}, or the tracebacks by rank of a check that failed, or the end of
    the log if a check did not run.
    """
    module = ".".join(Path(test_file).relative_to(REPOSITORY).with_suffix("").parts)
    ended = server.run(
        size,
        "tests.parallel.ranks:run_checks",
        [module, str(folder), *checks],
        log=folder / "log of {rank}",
        sys_path=[REPOSITORY],
        timeout_seconds=TIMEOUT_SECONDS,
    )
    outcomes = {}
    for name in checks:
        said = {rank: folder / f"{name}.{rank}" for rank in range(size)}
        texts = [f"rank {rank}: {path.read_text()}" for rank, path in said.items() if path.exists()]
        passed = len(texts) == size and not any("\n" in text for text in texts)
        outcomes[name] = "" if passed else "\n".join(texts) or f"not run\n{ended.last_output(60)}"
    return outcomes


def run_checks(module: str, folder: str, *checks: str) -> None:
    """Run the checks on one rank."""
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    functions = importlib.import_module(module)
    # It splits a layer into the same graphs as the default backend, without half a minute of C++, which
    # tests/model/test_gpt.py has in one process, and `make parity` in layouts of every kind.
    torch.compile = functools.partial(torch.compile, backend="eager")
    for name in checks:
        torch.manual_seed(0)
        said = Path(folder, f"{name}.{rank}")
        try:
            getattr(functions, name)()
        except BaseException:
            said.write_text(f"\n{traceback.format_exc()}")
            # The other ranks may be waiting for this one in a collective: its end is their error.
            raise
        said.write_text("passed")
    dist.barrier()
    dist.destroy_process_group()
