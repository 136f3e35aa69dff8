"""Everything a trainer needs, built in one fixed order.

refusals -> process group -> newest whole checkpoint -> data -> model -> engine -> the checkpoint's state
"""

import os
import shutil
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.config.deepspeed import deepspeed_config
from nbtrain.config.schema import RunConfig
from nbtrain.data import gpt_dataset
from nbtrain.errors import ConfigError
from nbtrain.model.gpt import build_model
from nbtrain.parallel.random import seed_rank
from nbtrain.parallel.startup import World, quiet
from nbtrain.rundir import EventWriter, RunDir
from nbtrain.train.checkpoint import Checkpointer, TrainState, choose
from nbtrain.train.optimizer import build_optimizer


@dataclass
class Built:
    """What build() returns."""

    engine: Any
    optimizer: torch.optim.Optimizer
    datasets: gpt_dataset.GPTDatasets
    checkpointer: Checkpointer
    state: TrainState
    manifest: dict[str, Any] | None
    """Of the checkpoint to go on from; None at a fresh start."""

    def load(self) -> None:
        """Go on from the checkpoint, where there is one. Called by all ranks together."""
        if self.manifest is not None:
            self.state = self.checkpointer.load(self.manifest, self.state.data)


def refuse_unsupported(config: RunConfig) -> None:
    """Raises ConfigError, naming the field, for what this release plans but does not train."""
    parallel = config.parallel
    asked = {
        "parallel.tensor_parallel_size": parallel.tensor_parallel_size > 1,
        "parallel.pipeline_parallel_size": parallel.pipeline_parallel_size > 1,
        "parallel.sequence_parallel": parallel.sequence_parallel,
    }
    for key, is_asked in asked.items():
        if is_asked:
            raise ConfigError(
                f"{config.where(key)}: {key} is not trained by this release, which runs data parallelism with "
                "ZeRO 0 to 3; `nbtrain plan` and `nbtrain check` take it. Choose a data-parallel run."
            )
    if config.model.compile:
        _refuse_compile(config)


def _refuse_compile(config: RunConfig) -> None:
    where = config.where("model.compile")
    if config.parallel.zero_stage == 3:
        raise ConfigError(
            f"{where}: model.compile = true fails with parallel.zero_stage = 3 in torch {torch.__version__}, whose "
            "compiler cannot follow partitioned weights. Set compile: false, or zero_stage: 2."
        )
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if config.resources.device == "cpu" and (compiler is None or shutil.which(compiler) is None):
        raise ConfigError(
            f"{where}: model.compile = true needs a C++ compiler on CPU, and neither $CXX nor g++ nor clang++ was "
            "found. Install one (Debian: apt-get install g++), or set compile: false."
        )


def _refuse_format(config: RunConfig) -> None:
    from deepspeed.accelerator import get_accelerator

    accelerator, dtype = get_accelerator(), config.precision.dtype
    supported = {
        "fp32": True,
        "bf16": accelerator.is_bf16_supported(),
        "fp16": accelerator.is_fp16_supported(),
    }
    if not supported[dtype]:
        usable = ", ".join(name for name, can in supported.items() if can)
        raise ConfigError(
            f"{config.where('precision.dtype')}: precision.dtype = {dtype} is not supported by DeepSpeed on this "
            f"{accelerator.device_name()}; here it can be {usable}."
        )


def build(config: RunConfig, run: RunDir, world: World, events: EventWriter | None) -> Built:
    """Data, model and engine; load() comes next. Called by all ranks together."""
    import deepspeed

    if world.size != config.world_size:
        raise ConfigError(
            f"the run needs {config.world_size} ranks (parallel.data_parallel_size = "
            f"{config.parallel.data_parallel_size}), but {world.size} were started."
        )
    _refuse_format(config)
    manifest = choose(run, world, events)
    index_samples = manifest["data_state"]["index_samples"] if manifest else None
    datasets = _build_data(config, index_samples, world)

    derived = deepspeed_config(config)
    # Before the model: under ZeRO 3 a parameter is cut as soon as its module is made.
    with deepspeed.zero.Init(config_dict_or_path=derived, enabled=config.parallel.zero_stage == 3):
        model = build_model(config)
    if config.model.compile:
        for layer in model.layers:
            layer.compile()
    with quiet():
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=build_optimizer(model, config.optimizer),
            config=derived,
            dist_init_required=False,
        )
    engine.train()
    checkpointer = Checkpointer(run, config, engine, world, datasets.manifest.tokenizer_sha256, events)
    seed_rank(config.model.seed, world.rank)
    return Built(engine, optimizer, datasets, checkpointer, TrainState(0, datasets.state), manifest)


def _build_data(config: RunConfig, index_samples: int | None, world: World) -> gpt_dataset.GPTDatasets:
    # Rank 0 fills the index cache, the others read it.
    if world.rank == 0:
        datasets = gpt_dataset.build(config, index_samples)
    dist.barrier()
    if world.rank != 0:
        datasets = gpt_dataset.build(config, index_samples)
    return datasets
