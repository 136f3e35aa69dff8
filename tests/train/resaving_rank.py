"""Forked ranks that compute in fp16 on any CPU: one function trains, the other loads a checkpoint and saves
it without training.

DeepSpeed checks the processor for fp16 instructions. Without them, torch still computes in fp16, but slowly.
The large products with which the trainer measures the processor would take longer than all steps, so they are
skipped.
"""

from pathlib import Path

from deepspeed.accelerator import get_accelerator

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.live.live_run import TrainState
from nbtrain.config.load import load_resolved
from nbtrain.dataset.samples.state import DataState
from nbtrain.parallel import startup
from nbtrain.train.build import build
from nbtrain.train.figures import throughput


def train(path: str) -> int:
    """Train in the same way as `python -m nbtrain.train`."""
    from nbtrain.train.__main__ import main as train_run

    get_accelerator().is_fp16_supported = lambda: True
    throughput.measure_matmul_flops = lambda device, dtype: 1e12
    return train_run(path)


def main(path: str, to: str, universal: str | None = None) -> int:
    """Load the checkpoint of the run `path` and save it, in the layout of this run, to the run directory
    `to`.

    If `universal` is given, DeepSpeed's own loader reads this folder in DeepSpeed's universal format instead.
    """
    world = startup.start("cpu", 120)
    get_accelerator().is_fp16_supported = lambda: True
    run = RunDir(path)
    built = build(load_resolved(run.config_yaml), run, world, None)
    if universal is None:
        built.load()
    else:
        # {"checkpoint": {"load_universal": true}}, which a run's configuration does not accept.
        built.engine.deepspeed._config.load_universal_checkpoint = True
        _, client_state = built.engine.deepspeed.load_checkpoint(
            str(Path(universal).parent), tag=Path(universal).name, load_lr_scheduler_states=False
        )
        saved = client_state["nbtrain"]["state"]
        built.state = TrainState(**{**saved, "data": DataState.from_dict(saved["data"])})
    built.saver.live.run = RunDir(to)
    built.saver.save(built.state)
    built.saver.finish()
    startup.finish()
    return 0
