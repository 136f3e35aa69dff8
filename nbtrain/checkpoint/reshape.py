"""Loads a checkpoint of any layout into a live DeepSpeed engine of any other layout.

Each rank reads its own elements of each parameter from the store: masters and moments, byte for byte, and the
step. The weights that the model computes with are rounded from the masters, as DeepSpeed does after each
step. Hyperparameters and clipping are not loaded, because the run's configuration decides them.

The vocabulary's padding rows, which the loss ignores, depend on the number of tensor ranks
(config.padded_vocab_size). A layout with more padding rows initializes the new rows as for a new model, with
moments of 0; a layout with fewer drops the excess rows.
"""

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.live.live_parts import base_optimizer, live_shape, live_tensors, local_elements
from nbtrain.checkpoint.weights.masters import Weights
from nbtrain.checkpoint.weights.store import MASTER, CheckpointStore, TensorPart, moments_of
from nbtrain.model.gpt_pipe import canonical_parameters, trained_parameters
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.parallel.tensor import partition_dim

# Attributes of DeepSpeed's dynamic loss scaler that change from step to step; all other attributes are
# settings.
MOVING = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@dataclass(frozen=True)
class Target:
    """Consecutive elements of a parameter in this rank's optimizer, to be filled from a checkpoint.

    They are the elements [start, start + count) of this tensor-parallel rank's part of the parameter.
    """

    name: str
    start: int
    count: int
    states: dict[str, torch.Tensor]
    """The fp32 masters and the moments by name, as flat views into the live state."""


def load_masters(
    engine: Any,
    weights: Weights,
    tensor: tuple[int, int],
    padded_vocab_size: int,
    piece_elements: int,
    names: Collection[str] | None = None,
) -> None:
    """Load the masters of `weights` into a new `engine` at step 0, and set the model's weights to the rounded
    masters.

    `tensor` is (this process's tensor-parallel rank, the number of tensor-parallel ranks). `names` selects
    the parameters to load; names that are not on this pipeline stage are ignored, and None means all trained
    parameters. At most `piece_elements` elements of a parameter are read at one time. All ranks call it
    together. Raises the same errors as load_into().
    """
    parameters = dict(trained_parameters(engine.module))
    loaded = parameters if names is None else {name: parameters[name] for name in names if name in parameters}
    _check_shapes(weights, loaded, tensor, padded_vocab_size)
    with _open_masters(engine.optimizer):
        for held in live_tensors(engine, parameters):
            flat = held.tensor.data.view(-1)
            for name, start, count, offset in held.parts:
                if name not in loaded:
                    continue
                rows = padded_vocab_size if name in OF_VOCABULARY else None
                part = TensorPart(*tensor, partition_dim(parameters[name]))
                for first in range(0, count, piece_elements):
                    wanted = min(piece_elements, count - first)
                    found = weights.read(name, MASTER, part, start + first, wanted, rows)
                    flat[offset + first : offset + first + len(found)].copy_(found)


def load_frozen(
    engine: Any, weights: Weights, tensor: tuple[int, int], padded_vocab_size: int, piece_elements: int
) -> None:
    """Load the rounded `weights` into the frozen parameters of `engine`. Arguments and errors are the same as
    for load_masters().
    """
    frozen = {
        name: parameter
        for name, parameter in canonical_parameters(engine.module)
        if not parameter.requires_grad
    }
    _check_shapes(weights, frozen, tensor, padded_vocab_size)
    with _partitioned(engine.optimizer), torch.no_grad():
        for name, parameter in frozen.items():
            rows = padded_vocab_size if name in OF_VOCABULARY else None
            part = TensorPart(*tensor, partition_dim(parameter))
            flat, start = local_elements(parameter)
            for first in range(0, len(flat), piece_elements):
                wanted = min(piece_elements, len(flat) - first)
                found = weights.read(name, MASTER, part, start + first, wanted, rows)
                flat[first : first + len(found)].copy_(found)


@contextlib.contextmanager
def _open_masters(optimizer: Any) -> Iterator[None]:
    """Allow writing masters inside the context; afterwards, the model's weights are rounded from them."""
    with _partitioned(optimizer), torch.no_grad():
        yield
        _round_weights(optimizer)


@contextlib.contextmanager
def _partitioned(optimizer: Any) -> Iterator[None]:
    """Keep all parameters partitioned inside the context under ZeRO 3, even small ones that usually stay
    gathered.
    """
    is_partitioned = hasattr(optimizer, "fp16_partitioned_groups_flat")
    if is_partitioned:
        optimizer.checkpoint_event_prologue()
    yield
    if is_partitioned:
        optimizer.checkpoint_event_epilogue()


def load_into(engine: Any, store: CheckpointStore, tensor: tuple[int, int], padded_vocab_size: int) -> None:
    """Load masters, moments, steps, weights, loss scale and counters of `store` into `engine`.

    `tensor` is (this process's tensor-parallel rank, the number of tensor-parallel ranks). All ranks call it
    together. Raises CheckpointError if the checkpoint lacks a parameter of the model, or has it in another
    shape.
    """
    parameters, optimizer = dict(trained_parameters(engine.module)), engine.optimizer
    _check_shapes(store, parameters, tensor, padded_vocab_size)
    with _open_masters(optimizer):
        for target in targets(engine, parameters, store):
            rows = padded_vocab_size if target.name in OF_VOCABULARY else None
            part = TensorPart(*tensor, partition_dim(parameters[target.name]))
            for state, live in target.states.items():
                found = store.read(target.name, state, part, target.start, target.count, rows)
                live[: len(found)].copy_(found)
                if len(found) < target.count and state != MASTER:
                    live[len(found) :].zero_()
    scaler = store.global_state.get("loss_scaler")
    if scaler is not None and (own := getattr(optimizer, "loss_scaler", None)) is not None:
        keep_loss_scaler(optimizer, own, scaler)
    for key, value in store.counters.items():
        setattr(engine, key, value)


def keep_loss_scaler(optimizer: Any, own: Any, saved: Any) -> None:
    """Give an optimizer the run's `own` loss scaler, which starts from the scale of the `saved` one.

    precision.fp16 may differ between the saved and the resumed run. The saved scale is used only if both runs
    scale dynamically. If the resumed run's scale is fixed, its own value is used; if only the resumed run
    scales dynamically, its scale starts from the initial value.
    """
    optimizer.loss_scaler, optimizer.dynamic_loss_scale = own, own.dynamic
    if own.dynamic and saved.dynamic:
        for key in MOVING:
            setattr(own, key, getattr(saved, key))
        own.cur_scale = max(own.cur_scale, own.min_scale)
        own.cur_hysteresis = min(own.cur_hysteresis, own.delayed_shift)


def _check_shapes(
    store: Weights,
    parameters: dict[str, nn.Parameter],
    tensor: tuple[int, int],
    padded_vocab_size: int,
) -> None:
    for name, parameter in parameters.items():
        stored = store.parameters.get(name)
        if stored is None:
            raise CheckpointError(f"{store.folder}: holds no parameter {name}, which the model has.")
        shape = list(stored.shape)
        if name in OF_VOCABULARY:
            shape[0] = padded_vocab_size
        if (dim := partition_dim(parameter)) is not None:
            shape[dim] //= tensor[1]
        if tuple(shape) != (live := live_shape(parameter)):
            raise CheckpointError(
                f"{store.folder}: {name} has the shape {tuple(stored.shape)} in the checkpoint, so this "
                f"rank's shard should have the shape {tuple(shape)}, but the model's shard has {live}."
            )


def targets(engine: Any, parameters: dict[str, nn.Parameter], store: CheckpointStore) -> Iterator[Target]:
    """Yield all elements that this rank's optimizer holds. Allocates their moments and sets their step."""
    optimizer = engine.optimizer
    if getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        raise CheckpointError(
            "a checkpoint that was saved with another layout cannot be loaded into state that is offloaded "
            "to NVMe. Resume with parallel.offload_optimizer.device and offload_param.device = cpu, or "
            "with the layout in which the checkpoint was saved."
        )
    base = base_optimizer(engine)
    for held in live_tensors(engine, parameters):
        step = _common_step(store, held.names)
        states = {MASTER: held.tensor.data, **_moments(base, held.group, held.tensor, step)}
        flat = {key: value.view(-1) for key, value in states.items()}
        for part in held.parts:
            views = {key: value[part.offset : part.offset + part.count] for key, value in flat.items()}
            yield Target(part.name, part.start, part.count, views)


def _common_step(store: CheckpointStore, names: list[str]) -> float:
    """Return the optimizer's step count of the parameters in one flat tensor.

    Raises CheckpointError if the parameters have different step counts.
    """
    steps = {store.step(name) for name in names}
    if len(steps) > 1:
        raise CheckpointError(f"{store.folder}: its parameters are at different steps: {sorted(steps)}.")
    return steps.pop() if steps else store.step(next(iter(store.parameters)))


def _moments(
    optimizer: Any, group: dict[str, Any], parameter: torch.Tensor, step: float
) -> dict[str, torch.Tensor]:
    """Return Adam's moments or Muon's momentum of one tensor, created if missing, and set the tensor's step.

    Each parameter gets its own step tensor: torch increments the tensor in place, so a shared one would be
    incremented several times in a step.
    """
    state, keys = optimizer.state[parameter], moments_of(group["name"])
    for key in keys:
        if key not in state:
            state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if isinstance(optimizer, torch.optim.AdamW):
        device = parameter.device if group.get("fused") or group.get("capturable") else "cpu"
        state["step"] = torch.tensor(step, dtype=torch.float32, device=device)
    else:
        # DeepSpeed's own optimizers count in integers.
        state["step"] = int(step)
        if "step" in group:
            group["step"] = int(step)
    return {key: state[key].data for key in keys}


def _round_weights(optimizer: Any) -> None:
    """Set the model's weights to the rounded masters, on all data-parallel ranks."""
    if hasattr(optimizer, "fp16_partitioned_groups_flat"):
        for flat, half, group in zip(
            optimizer.fp32_partitioned_groups_flat,
            optimizer.fp16_partitioned_groups_flat,
            optimizer.fp16_partitioned_groups,
            strict=True,
        ):
            half.copy_(flat)
            for parameter, part in zip(group, optimizer.unflatten(half, group), strict=True):
                parameter.data = part.data
    elif hasattr(optimizer, "update_lp_params"):
        optimizer.update_lp_params()
