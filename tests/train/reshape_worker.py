"""One rank that trains several runs in one process group; what was loaded into another layout is saved again first.

python reshape_worker.py RUN_DIR ...; a run that has a checkpoint before it is trained leaves, under resaved/, the
checkpoint that its layout makes of it.
"""

import gc
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups as deepspeed_groups

from nbtrain.config.load import load_resolved
from nbtrain.parallel import startup
from nbtrain.parent_death import die_with_parent
from nbtrain.rundir import EventWriter, Progress, RunDir
from nbtrain.train.build import build
from nbtrain.train.heartbeat import HeartbeatWriter
from nbtrain.train.requests import Requests
from nbtrain.train.trainer import train_run

# What deepspeed/utils/groups.py keeps of an engine for the next one, as it is before any.
UNUSED = {
    name: value
    for name, value in vars(deepspeed_groups).items()
    if value is None and not name.startswith("__")
}


def forget_engines() -> None:
    """Let go of the last engine, and of what DeepSpeed would give the next one of it."""
    gc.collect()
    for name, value in UNUSED.items():
        setattr(deepspeed_groups, name, value)


def main(paths: list[str]) -> None:
    die_with_parent()
    world = startup.start("cpu", 120)
    # DeepSpeed asks the processor for fp16 instructions; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    for path in paths:
        run = RunDir(path)
        job = run.newest_job()
        config = load_resolved(run.config_yaml)
        heartbeat = HeartbeatWriter(job, world.rank, 0)
        if world.rank == 0:
            heartbeat.events = EventWriter(job, "rank0")
            heartbeat.progress = Progress(config.train_steps, config.train_tokens)
        if run.checkpoint_steps():
            built = build(config, run, world, None)
            built.load()
            built.checkpointer.run = RunDir(run.path / "resaved")
            built.checkpointer.save(built.state)
            built.checkpointer.finish()
            del built
            forget_engines()
        assert train_run(run, config, world, Requests(job, world.rank), heartbeat) == "finished"
        forget_engines()
    startup.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
