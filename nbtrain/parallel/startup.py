"""Starts and ends training on a rank: environment, process group and clean exit.

A job's launcher (jobs/node/rank_launcher.py), torchrun, or any program that sets RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT can start the ranks. On a CPU, DeepSpeed is prevented from compiling
its shared-memory all-reduce, which is only useful for inference. Otherwise every init_distributed would build
it, which takes half a minute and needs a compiler.
"""

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from nbtrain.parallel.stale_locks import remove_stale_locks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """This rank's number and device, and the number of ranks."""

    rank: int
    size: int
    local_rank: int
    device: torch.device


def start(device: str, timeout_seconds: float) -> World:
    """Join the process group, with gloo on cpu and NCCL on gpu.

    Raises RuntimeError if an environment variable or the rank's GPU is missing.
    """
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if name not in os.environ
    ]
    if missing:
        raise RuntimeError(
            f"environment variables not set: {', '.join(missing)}. Start the ranks with `torchrun "
            "--nproc-per-node N -m nbtrain.train RUN`."
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    prepare_deepspeed(device)
    import deepspeed

    if local_rank == 0:
        for lock in remove_stale_locks():
            logger.warning("%s: removed this lock, which was left by a killed build", lock)
    if device == "gpu":
        if torch.cuda.device_count() <= local_rank:
            raise RuntimeError(
                f"rank {os.environ['RANK']} needs GPU {local_rank}, but the number of GPUs that torch "
                f"{torch.__version__} finds is {torch.cuda.device_count()}. Set resources.device: cpu to "
                "train on the CPU."
            )
        torch.cuda.set_device(local_rank)
    deepspeed.init_distributed(
        dist_backend="nccl" if device == "gpu" else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_seconds),
    )
    target = torch.device("cuda", local_rank) if device == "gpu" else torch.device("cpu")
    return World(dist.get_rank(), dist.get_world_size(), local_rank, target)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log at debug level what is printed in the `with` block, such as DeepSpeed's many memory reports."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in printed.getvalue().splitlines():
        logger.debug("%s", line)


def finish() -> None:
    """Destroy the process group after a barrier.

    Without the barrier, gloo's threads may abort the process at exit (SIGABRT).
    """
    if dist.is_initialized():
        wait_for_all()
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait for all ranks. A single rank on a GPU skips the barrier, because NCCL would print a warning."""
    if dist.get_world_size() > 1 or dist.get_backend() != "nccl":
        dist.barrier()


def without_letters(architectures: str) -> str:
    """Return the value of TORCH_CUDA_ARCH_LIST without letters: "9.0a" becomes "9.0".

    A GPU of architecture 9.0a also runs code for 9.0. DeepSpeed's builder raises ValueError for a letter
    (ops/op_builder/builder.py, 0.19.8).
    """
    return re.sub(r"(\d)[a-z]", r"\1", architectures)


def prepare_deepspeed(device: str) -> None:
    """Import DeepSpeed without its warnings and, on cpu, without its search for compilers."""
    # Ignore deprecation warnings about DeepSpeed's own calls of torch, which a user cannot fix.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed|deepspeed")
    warnings.filterwarnings("ignore", category=UserWarning, module=r"deepspeed")
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    elif architectures := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        os.environ["TORCH_CUDA_ARCH_LIST"] = without_letters(architectures)
    import deepspeed
    from deepspeed.utils import logger as deepspeed_logger

    deepspeed_logger.setLevel(logging.WARNING)
    # DeepSpeed logs to the stdout that exists at import, before any redirection.
    for handler in deepspeed_logger.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)
    if device == "cpu":
        # Searching for compilable ops starts compilers; an empty table means that there are none.
        deepspeed.ops.__compatible_ops__ = {}
