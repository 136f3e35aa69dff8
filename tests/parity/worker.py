"""One rank that trains several runs, one after the other, in one process group: its start is paid once.

python worker.py RUN_DIR ...; each run as `python -m nbtrain.train` trains it, but for start and end.
"""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

from deepspeed.accelerator import get_accelerator

from nbtrain.config.load import load_resolved
from nbtrain.parallel import startup
from nbtrain.parent_death import die_with_parent
from nbtrain.rundir import EventWriter, Progress, RunDir
from nbtrain.train.build import refuse_unsupported
from nbtrain.train.heartbeat import HeartbeatWriter
from nbtrain.train.requests import Requests
from nbtrain.train.trainer import train_run


def main(paths: list[str]) -> None:
    die_with_parent()
    world = startup.start("cpu", 120)
    # DeepSpeed asks the processor for fp16 instructions; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    for path in paths:
        run = RunDir(path)
        job = run.newest_job()
        config = load_resolved(run.config_yaml)
        refuse_unsupported(config)
        heartbeat = HeartbeatWriter(job, world.rank, 0)
        if world.rank == 0:
            heartbeat.events = EventWriter(job, "rank0")
            heartbeat.progress = Progress(config.train_steps, config.train_tokens)
        assert train_run(run, config, world, Requests(job, world.rank), heartbeat) == "finished"
    startup.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
