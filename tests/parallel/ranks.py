"""Checks that need several ranks: many in one launch, since the launch costs more than they do.

A test file holds functions check_<what>(); each runs on every rank of one gloo process group, in the order of the
file, and a failure on any rank is that check's. The ranks are forked from a fresh process that has imported torch
and the file but computed nothing, so that torch is imported once and no thread is lost in a fork.

prepare(), where the file has one, is called before the fork, for imports that take long.

python ranks.py TEST_FILE SIZE FOLDER CHECK ...
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch

TIMEOUT_SECONDS = 60


def names(module: dict) -> list[str]:
    """The checks of a test file's globals()."""
    return [name for name in module if name.startswith("check_")]


def launch(test_file: str, size: int, folder: Path, checks: list[str]) -> dict[str, str]:
    """{check: "" or the traceback of each rank where it failed}; the log where ranks ended otherwise."""
    command = [sys.executable, "-W", "ignore", __file__, test_file, str(size), str(folder), *checks]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        log = process.communicate(timeout=TIMEOUT_SECONDS * 6)[0].decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcomes = {}
    for name in checks:
        said = {rank: folder / f"{name}.{rank}" for rank in range(size)}
        texts = [f"rank {rank}: {path.read_text()}" for rank, path in said.items() if path.exists()]
        ended = len(texts) == size and not any("\n" in text for text in texts)
        outcomes[name] = "" if ended else "\n".join(texts) or f"not run\n{log[-3000:]}"
    return outcomes


def _run(module, rank: int, size: int, folder: Path, checks: list[str]) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    for name in checks:
        torch.manual_seed(0)
        try:
            getattr(module, name)()
        except BaseException:
            (folder / f"{name}.{rank}").write_text(f"\n{traceback.format_exc()}")
            # The others may be waiting for this rank in a collective: its end is their error.
            raise
        (folder / f"{name}.{rank}").write_text("passed")
    dist.barrier()
    dist.destroy_process_group()


def main(test_file: str, size: str, folder: str, *checks: str) -> None:
    sys.path.insert(0, str(Path(test_file).parent))
    sys.path.insert(0, str(Path(__file__).parents[2]))
    specification = importlib.util.spec_from_file_location("checks", test_file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    getattr(module, "prepare", lambda: None)()
    children = []
    for rank in range(int(size)):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size)
            code = 1
            try:
                _run(module, rank, int(size), Path(folder), list(checks))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    print(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
