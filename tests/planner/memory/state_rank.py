"""A rank that builds the engines of several layouts, runs one step with each, and writes how many bytes are
allocated.

The bytes of the model's parameters, their gradients and the optimizer's state are counted, each byte once:
parameters are views of flat buffers, whose padding counts too. Weights and gradients are counted between the
parts of a step, and the maximum is kept. The second copy of hpZ exists only inside a step.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.config.schema import RunConfig
from nbtrain.parallel import startup
from nbtrain.parallel.four_bits import FourBitMatrix
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.train.build import build_engine
from nbtrain.train.engine.batches import Batch
from nbtrain.train.engine.engine import MicroBatch, StepWork
from nbtrain.train.figures.throughput import StepTimer
from tests.parity.worker import forget_engines

WEIGHTS, GRADIENTS, MASTER, MOMENTS = "weights", "gradients", "master_copy", "optimizer"


class _WatchingTimer(StepTimer):
    """A DeepSpeed timer that also measures gradients and weights whenever a part of a step ends."""

    def __init__(self, engine: Any, device: torch.device):
        super().__init__(device)
        self.engine, self.most = engine, {WEIGHTS: 0, GRADIENTS: 0}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        with super().part(name):
            yield
        if name in ("forward", "backward"):
            now = {WEIGHTS: _bytes(_weights(self.engine)), GRADIENTS: _bytes(_gradients(self.engine))}
            self.most = {part: max(size, now[part]) for part, size in self.most.items()}


def main(answer: str, runs: str) -> None:
    """Rank r writes {name of the run: bytes by part} to the file `answer`.r. Each line of the file `runs` is
    a run as JSON.
    """
    die_with_parent()
    world = startup.start("cpu", 600)
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed checks the processor for fp16 instructions; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    found = {}
    for line in Path(runs).read_text().splitlines():
        config = RunConfig.model_validate_json(line)
        found[config.name] = _measure(config, world)
        forget_engines()
    Path(f"{answer}.{world.rank}").write_text(json.dumps(found))
    startup.finish()


def _measure(config: RunConfig, world: startup.World) -> dict[str, int]:
    groups = ParallelGroups.create(config.topology, config.parallel.sequence_ranks, 600)
    # Without dropout, no random generator is needed.
    engine = build_engine(config, groups, None)
    timer = _WatchingTimer(engine.deepspeed, world.device)
    tokens = torch.zeros(config.batch.micro_batch_size, config.model.seq_length, dtype=torch.int64)
    micro_batches = config.accumulation_steps
    # The sums of an offloaded optimizer in host memory stay from step to step.
    for _ in range(1 if config.parallel.offload_optimizer.device == "none" else 2):
        batches = (MicroBatch(Batch(tokens, tokens), None) for _ in range(micro_batches))
        engine.train_step(StepWork(batches, micro_batches, timer, lambda: None))
    return {**_state(engine.deepspeed), **timer.most}


def _state(engine: Any) -> dict[str, int]:
    """Return the bytes of the master weights and moments after a step."""
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    stepped = [parameter for group in inner.param_groups for parameter in group["params"]]
    held = {tensor.untyped_storage().data_ptr() for tensor in _weights(engine)}
    masters = [tensor for tensor in stepped if tensor.untyped_storage().data_ptr() not in held]
    if engine.zero_optimization_stage() == 3:
        masters = list(optimizer.fp32_partitioned_groups_flat)
    moments = [
        value for state in inner.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return {MASTER: _bytes(masters), MOMENTS: _bytes(moments)}


def _weights(engine: Any) -> Iterator[torch.Tensor]:
    """Return the bytes of parameters and flat buffers including second copies; under ZeRO 3, only this rank's
    shard counts.
    """
    optimizer = engine.optimizer
    for name in ("bit16_groups_flat", "bf16_groups_flat"):
        yield from getattr(optimizer, name, ())
    for parameter in engine.module.parameters():
        if hasattr(parameter, "ds_tensor"):
            yield parameter.ds_tensor
            second = getattr(parameter, "ds_secondary_tensor", None)
            if second is not None:
                yield second
        else:
            yield parameter.data
    # Matrices in 4 bits are buffers rather than parameters.
    for module in engine.module.modules():
        if isinstance(module, FourBitMatrix):
            yield from module.buffers()


def _gradients(engine: Any) -> Iterator[torch.Tensor]:
    for parameter in engine.module.parameters():
        for name in ("grad", "grad_accum"):
            gradient = getattr(parameter, name, None)
            if isinstance(gradient, torch.Tensor):
                yield gradient
    optimizer = engine.optimizer
    yield from getattr(optimizer, "fp32_groups_gradients_flat", ())
    for partition in getattr(optimizer, "averaged_gradients", {}).values():
        yield from (tensor for tensor in partition or () if isinstance(tensor, torch.Tensor))
    whole = getattr(optimizer, "grad_partitions_flat_buffer", None)
    if whole is not None:
        yield whole
    yield from getattr(optimizer, "accumulated_grads_in_cpu", {}).values()
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        for partition in getattr(optimizer, name, ()):
            if partition.grad is not None:
                yield partition.grad


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes these tensors cover together, counting overlaps once."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage().data_ptr()
        assert tensor.is_contiguous()
        begin = tensor.data_ptr()
        covered.setdefault(storage, []).append((begin, begin + tensor.nbytes))
    return sum(map(_length, covered.values()))


def _length(stretches: list[tuple[int, int]]) -> int:
    """Return the total length of the union of the intervals [begin, end)."""
    total, reached = 0, 0
    for begin, end in sorted(stretches):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total
