"""Measures complete steps of DeepSpeed engines with very small models, to determine the overhead of a step.

The engine is built as the trainer builds it (train/build.py). Four models in the same layout separate the
costs that grow with the micro batches, with the blocks of each micro batch, and with the parameters:

    base      one block, one micro batch
    micro     one block, four micro batches
    layers    nine blocks, one micro batch
    wide      one block of four times the width: thirteen times the parameters
"""

import functools
import time
from collections.abc import Iterator
from typing import Any

import torch

from nbtrain.config.schema import RunConfig
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.train.build import build_engine
from nbtrain.train.calibration.stopwatch import Stopwatch, ranks
from nbtrain.train.engine.batches import Batch
from nbtrain.train.engine.engine import MicroBatch, StepWork, TrainEngine
from nbtrain.train.engine.optimizer import set_batch_size
from nbtrain.train.figures.throughput import StepTimer

SEQUENCE = 256
# name: layers, hidden size, micro batches
MODELS = {"base": (1, 128, 1), "micro": (1, 128, 4), "layers": (9, 128, 1), "wide": (1, 512, 1)}
VOCABULARY = 1024
SLICES = 3
TIMEOUT_SECONDS = 600.0


def measure(watch: Stopwatch, dtype: str, zero_stage: int) -> Iterator[dict[str, Any]]:
    """Measure the steps of all models with ZeRO `zero_stage` over all ranks. All ranks call it together.

    The results are subtracted from each other and must therefore be accurate, so each model gets SLICES
    shares of the time.
    """
    for name, (layers, hidden, micro_batches) in MODELS.items():
        config = run_config(layers, hidden, micro_batches, dtype, zero_stage, watch.device)
        groups = ParallelGroups.create(config.topology, 1, TIMEOUT_SECONDS)
        engine = build_engine(config, groups, None)
        watch.engines -= 1
        seconds = watch.seconds(functools.partial(step, engine, config, watch.device), SLICES)
        yield {
            "what": "step",
            "model": name,
            "dtype": dtype,
            "zero_stage": zero_stage,
            "layers": layers,
            "hidden": hidden,
            "vocabulary": config.padded_vocab_size,
            "tokens": SEQUENCE,
            "micro_batches": micro_batches,
            "seconds": seconds,
        }


def step(engine: TrainEngine, config: RunConfig, device: torch.device) -> None:
    """Run one optimizer step on dummy tokens."""
    accumulation_steps = set_batch_size(engine, config.batch.global_batch_size)
    tokens = torch.ones(1, SEQUENCE, dtype=torch.long, device=device)
    micro_batches = (MicroBatch(Batch(tokens, tokens), None) for _ in range(accumulation_steps))
    engine.train_step(StepWork(micro_batches, accumulation_steps, StepTimer(device), _no_beat))


def run_config(
    layers: int, hidden: int, micro_batches: int, dtype: str, zero_stage: int, device: torch.device
) -> RunConfig:
    """Return the configuration of one small model, with all ranks data-parallel."""
    data, on_gpu = ranks(), device.type == "cuda"
    values: dict[str, Any] = {
        "name": f"calibrate-{time.time_ns()}",
        "model": {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "seq_length": SEQUENCE,
        },
        "tokenizer": {"name": "calibrate", "vocab_size": VOCABULARY},
        "data": {"name": "calibrate"},
        "batch": {
            "micro_batch_size": 1,
            "global_batch_size": data * micro_batches,
            "train_tokens": 1_000_000,
        },
        "lr_schedule": {"lr": 1e-4},
        "precision": {"dtype": dtype},
        "parallel": {"data_parallel_size": data, "zero_stage": zero_stage},
        "resources": {"device": "gpu", "gpus_per_node": data} if on_gpu else {"device": "cpu"},
    }
    return RunConfig.model_validate(values)


def _no_beat() -> None:
    """Do nothing: no process reads the heartbeat of a calibration."""
