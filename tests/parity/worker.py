"""A rank that trains several runs one after the other in the same process group, so that ranks start only
once.

python worker.py RUN_DIR ..., or worker:main of forked ranks (nbtrain/proof/fork_client.py). Each run is
trained as by `python -m nbtrain.train`, except for starting and ending the process.
"""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import gc

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups as deepspeed_groups

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load_resolved
from nbtrain.parallel import startup
from nbtrain.parallel.startup import World
from nbtrain.train.build import refuse_unsupported
from nbtrain.train.health.heartbeat import HeartbeatWriter
from nbtrain.train.requests import Requests
from nbtrain.train.trainer import train_run

# Initial values of the state that deepspeed/utils/groups.py keeps from one engine for the next.
_UNUSED = {
    name: value
    for name, value in vars(deepspeed_groups).items()
    if value is None and not name.startswith("__")
}


def forget_engines() -> None:
    """Release the engine of the last run, and the state that DeepSpeed would pass on to the next engine."""
    gc.collect()
    for name, value in _UNUSED.items():
        setattr(deepspeed_groups, name, value)


def train(path: str, world: World) -> str:
    """Train a run and return "finished" or "stopped"."""
    run = RunDir(path)
    job = run.newest_job()
    config = load_resolved(run.config_yaml)
    refuse_unsupported(config)
    heartbeat = HeartbeatWriter(job, world.rank, 0)
    if world.rank == 0:
        heartbeat.events = EventWriter(job, "rank0")
        heartbeat.progress = TrainingProgress(config.train_steps, config.train_tokens)
    torch.manual_seed(0)
    return train_run(run, config, world, Requests(job, world.rank), heartbeat)


def main(*paths: str) -> None:
    die_with_parent()
    world = startup.start("cpu", 120)
    # DeepSpeed checks the processor for fp16 instructions; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    for path in paths:
        assert train(path, world) == "finished"
        forget_engines()
    startup.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
