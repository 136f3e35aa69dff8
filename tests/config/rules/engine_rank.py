"""Run one rank for a few steps of each run, whether or not the rules allow the run, and write the results.

All steps use the same random tokens, so that the loss falls fast and a wrong step is visible. Rank r writes
{"losses": [...], "norms": [...]} of a run to <answer>.<name of the run>.r; a missing file means a failure.
"""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from nbtrain.base.errors import ConfigError
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.parallel import startup
from nbtrain.train import build as building
from nbtrain.train.engine.batches import Batch
from nbtrain.train.engine.engine import MicroBatch, StepWork
from nbtrain.train.engine.optimizer import set_rates
from nbtrain.train.figures.throughput import StepTimer
from tests.config.rules.drawn import STEPS
from tests.parity.worker import forget_engines


def main(answer: str, wait_seconds: str, *paths: str) -> None:
    """Run the runs at `paths`. A rank whose peer has taken another branch waits `wait_seconds` for it."""
    die_with_parent()
    world = startup.start("cpu", int(wait_seconds))
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed requires fp16 instructions of the processor; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    for path in paths:
        run = RunDir(path)
        config = load_resolved(run.config_yaml)
        found = _steps(config, run, world)
        Path(f"{answer}.{config.name}.{world.rank}").write_text(json.dumps(found))
        forget_engines()
    startup.finish()


def _steps(config: RunConfig, run: RunDir, world: startup.World) -> dict[str, list[float]]:
    with mock.patch.object(building, "deepspeed_config", _whatever_the_stage):
        built = building.build(config, run, world, None)
    engine, schedule = built.engine, config.lr_schedule
    sequences = _own_sequences(config, engine.groups.data_parallel.rank)
    found: dict[str, list[float]] = {"losses": [], "norms": []}
    for _ in range(STEPS):
        set_rates(engine.optimizer, schedule.lr, 0.0)
        batches = (MicroBatch(Batch(rows[:, :-1], rows[:, 1:]), None) for rows in sequences)
        timer = StepTimer(world.device)
        made = engine.train_step(StepWork(batches, len(sequences), timer, lambda: None))
        found["losses"].append(float(made.loss))
        found["norms"].append(float(made.grad_norm if made.grad_norm is not None else "nan"))
    return found


def _own_sequences(config: RunConfig, place: int) -> list[torch.Tensor]:
    """Return the micro batches of a data-parallel rank; the ranks together have every sequence once."""
    model, batch = config.model, config.batch
    generator = torch.Generator().manual_seed(0)
    size = batch.global_batch_size, model.seq_length + 1
    tokens = torch.randint(config.tokenizer.vocab_size, size, generator=generator)
    rows = tokens.split(batch.micro_batch_size)
    return [part.contiguous() for part in rows[place :: config.parallel.data_parallel_size]]


def _whatever_the_stage(config: RunConfig) -> dict[str, Any]:
    """Return DeepSpeed's configuration, even for ZeRO 0 with 16-bit weights, which nbtrain refuses."""
    try:
        return deepspeed_config(config)
    except ConfigError:
        parallel = config.parallel.model_copy(update={"zero_stage": 1})
        derived = deepspeed_config(config.model_copy(update={"parallel": parallel}))
        derived["zero_optimization"]["stage"] = 0
        # Only ZeRO sums in fp32.
        derived.pop("data_types")
        return derived
