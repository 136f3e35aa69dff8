"""Train runs of one rank, and record which functions in a step read a number from a tensor; on a GPU, each
such read waits.

The fork server starts the rank, which calls main(RUN_DIR, ...); a run whose name ends in "-ahead" runs ahead
(nbtrain/train/engine/run_ahead.py). Writes {"file:function": times} over all steps to
RUN_DIR/host_syncs.json.
"""

import collections
import os
import traceback
from pathlib import Path

import deepspeed
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nbtrain
from nbtrain.base import files
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load_resolved
from nbtrain.parallel import startup
from nbtrain.train import trainer
from nbtrain.train.engine.run_ahead import let_run_ahead, may_run_ahead
from nbtrain.train.health.heartbeat import HeartbeatWriter
from nbtrain.train.requests import Requests
from nbtrain.train.training_step import TrainingStep

# masked_fill_ with a tensor reads its value on the host.
WAITS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::equal",
    "aten::masked_select",
    "aten::masked_fill_.Tensor",
}
# The folders of the packages themselves: a clone with its environment inside may have the same name.
PACKAGES = tuple(str(Path(package.__file__).parent) + os.sep for package in (nbtrain, deepspeed))


class Waits(TorchDispatchMode):
    """Counts waits, by the innermost function of our code or DeepSpeed's."""

    def __init__(self) -> None:
        super().__init__()
        self.found: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name() in WAITS:
            frames = [frame for frame in traceback.extract_stack() if _package(frame.filename)]
            self.found[f"{Path(frames[-1].filename).name}:{frames[-1].name}"] += 1
        return function(*args, **(kwargs or {}))


def _package(filename: str) -> bool:
    return filename.startswith(PACKAGES)


def main(*paths: str) -> None:
    die_with_parent()
    world = startup.start("cpu", 120)
    make, build = TrainingStep.make, trainer.build
    for path in paths:
        run, waits = RunDir(path), Waits()
        config = load_resolved(run.config_yaml)

        def counted(self, batches, logged, waits=waits):
            with waits:
                return make(self, batches, logged)

        def built(*arguments):
            made = build(*arguments)
            # The second argument is the folder of this run.
            if arguments[1].name.endswith("-ahead"):
                assert may_run_ahead(arguments[0])
                let_run_ahead(made.engine.deepspeed)
            return made

        TrainingStep.make, trainer.build = counted, built
        job = run.newest_job()
        # The launcher names the job of the first run.
        os.environ["NBTRAIN_JOB"] = job.job_id
        heartbeat = HeartbeatWriter(job, 0, 0)
        heartbeat.events = EventWriter(job, "rank0")
        heartbeat.progress = TrainingProgress(config.train_steps, config.train_tokens)
        torch.manual_seed(0)
        assert trainer.train_run(run, config, world, Requests(job, 0), heartbeat) == "finished"
        files.write_json(run.path / "host_syncs.json", dict(waits.found))
    startup.finish()
