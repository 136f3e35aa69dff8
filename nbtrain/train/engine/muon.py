"""Muon for the matrices of blocks and AdamW for everything else, in one optimizer that DeepSpeed wraps.

DeepSpeed's own Muon orthogonalizes before the norm of the gradients is computed, so that clipping acts on the
orthogonalized update. To DeepSpeed, this optimizer looks like AdamW: it receives this rank's part of the
averaged, clipped gradients, in every ZeRO stage. It processes these parts as follows:

    momentum        is kept element by element: sharded, saved and read like Adam's moments
    exchange        all parts of a matrix, from data-parallel and tensor-parallel ranks, go to one rank
    Newton-Schulz   runs there on the whole matrix; query, key and value, packed in one parameter, separately
    exchange        the parts of the result are sent back

Every layout therefore computes the same update as one process, and each matrix is orthogonalized once. In
ZeRO 0 every replica has all matrices and orthogonalizes them itself: only its tensor-parallel ranks exchange
parts. Both exchanges use the number format of the products: fp32, or bf16 if the run trains in bf16.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.checkpoint.live.live_parts import LiveTensor
from nbtrain.config.arithmetic.flops import newton_schulz_flops
from nbtrain.model.names import MATRICES
from nbtrain.parallel.groups import Group
from nbtrain.train.engine.newton_schulz import orthogonalize_

MatricesOf = Callable[[str, torch.Tensor], list[torch.Tensor]]
"""Function (canonical name, whole weight) -> views of the matrices that are packed in the weight
(model/packing.py).
"""

SCALES: dict[str, Callable[[int, int], float]] = {
    "spectral": lambda outputs, inputs: max(outputs, inputs) ** 0.5,
    "unit_rms_norm": lambda outputs, inputs: (outputs / inputs) ** 0.5,
    "shape_scaling": lambda outputs, inputs: max(1.0, outputs / inputs) ** 0.5,
}


@dataclass(frozen=True)
class Shard:
    """A matrix as it is stored on tensor-parallel ranks."""

    shape: tuple[int, ...]
    """Shape of each rank's part of the matrix."""
    dim: int | None
    """Dimension along which the matrix is sharded; None if every rank holds the whole matrix."""


class Muon(torch.optim.AdamW):
    """AdamW for the group `others`, Muon for the group `matrices`. Call bind() before the first step."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        matrices_of: MatricesOf,
        num_ns_steps: int,
        scale_mode: str,
        extra_scale_factor: float,
        products: torch.dtype,
        **adam: Any,
    ):
        """Create the optimizer for the parameter `groups` from optimizer.py; `products` is the number format
        of the matrix products in Newton-Schulz.
        """
        super().__init__(groups, lr=0.0, weight_decay=0.0, fused=True, **adam)
        self.matrices_of, self.num_ns_steps, self.products = matrices_of, num_ns_steps, products
        self.scale, self.extra_scale_factor = SCALES[scale_mode], extra_scale_factor
        self._decayed: dict[torch.Tensor, list[slice]] = {}
        self._exchanges: dict[torch.Tensor, Exchange] = {}

    def bind(
        self,
        tensors: Iterable[LiveTensor],
        shards: dict[str, Shard],
        decayed: Collection[str],
        stage: Group,
        tensor: Group,
        at_once: bool,
    ) -> None:
        """Record where each parameter is in the tensors that step() receives. All ranks call it together,
        once.

        `shards` maps the matrices' canonical names to their shards. `decayed` has the names of the other
        parameters that decay. `stage` is the group of ranks that hold parts of the same matrices; it has one
        rank if each rank has whole matrices. `tensor` is the group of tensor-parallel ranks within `stage`.
        With `at_once`, one call of step() processes all tensors of a parameter group; otherwise, ZeRO calls
        step() for each tensor.
        """
        matrices: list[list[LiveTensor]] = []
        for held in tensors:
            if held.group["name"] != MATRICES:
                spans = [
                    slice(part.offset, part.offset + part.count)
                    for part in held.parts
                    if part.name in decayed
                ]
                self._decayed[held.tensor] = spans
            elif at_once and matrices:
                matrices[0].append(held)
            else:
                matrices.append([held])
        for together in matrices:
            self._exchanges[together[0].tensor] = Exchange(together, shards, self._cost, stage, tensor)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters of the groups that are in `param_groups` now; ZeRO puts one group at a time
        there.
        """
        every = self.param_groups
        others = [group for group in every if group["name"] != MATRICES and group["params"]]
        for group in every:
            if group["name"] == MATRICES and group["params"]:
                self._step_matrices(group)
        for group in others:
            for parameter in group["params"]:
                for span in self._decayed[parameter]:
                    parameter.view(-1)[span].mul_(1 - group["lr"] * group["embedding_decay"])
        if others:
            self.param_groups = others
            try:
                super().step()
            finally:
                self.param_groups = every

    def _step_matrices(self, group: dict[str, Any]) -> None:
        parameters, updates = group["params"], []
        for parameter in parameters:
            state, gradient = self.state[parameter], parameter.grad
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["momentum_buffer"] = torch.zeros_like(parameter)
            state["step"] += 1
            momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
            # The gradient is no longer needed, so its memory holds the update. Otherwise, a third tensor of
            # the same size would be needed.
            updates.append(
                gradient.lerp_(momentum, group["momentum"]) if group["nesterov"] else gradient.copy_(momentum)
            )
        self._exchanges[parameters[0]].replace_(updates, self._orthogonalize, self.products)
        for parameter, update in zip(parameters, updates):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    def _orthogonalize(self, wholes: list[tuple[str, torch.Tensor]]) -> None:
        matrices = []
        for name, whole in wholes:
            for view in self.matrices_of(name, whole):
                factor = self.scale(view.shape[:-1].numel(), view.shape[-1]) * self.extra_scale_factor
                matrices.append((view, factor))
        orthogonalize_(matrices, self.num_ns_steps, self.products)

    def _cost(self, name: str, shape: tuple[int, ...]) -> int:
        views = self.matrices_of(name, torch.empty(shape, device="meta"))
        return sum(
            newton_schulz_flops(view.shape[:-1].numel(), view.shape[-1], self.num_ns_steps) for view in views
        )


class Exchange:
    """The matrices whose parts one call of step() processes, and the rank that each matrix is sent to."""

    def __init__(
        self,
        tensors: Sequence[LiveTensor],
        shards: dict[str, Shard],
        cost: Callable[[str, tuple[int, ...]], int],
        stage: Group,
        tensor: Group,
    ):
        self.tensors, self.shards, self.stage, self.tensor = tensors, shards, stage, tensor
        if stage.size == 1:
            return
        mine = [(number, part) for number, held in enumerate(tensors) for part in held.parts]
        told = (tensor.rank, [(part.name, part.start, part.count) for _, part in mine])
        everyone: list[Any] = [None] * stage.size
        dist.all_gather_object(everyone, told, group=stage.process_group)
        names = dict.fromkeys(name for _, parts in everyone for name, _, _ in parts)
        owners = self._owners({name: cost(name, self._whole_shape(name)) for name in names})
        self.sent = [[entry for entry in mine if owners[entry[1].name] == rank] for rank in range(stage.size)]
        self.received = [
            [(place, *part) for part in parts if owners[part[0]] == stage.rank] for place, parts in everyone
        ]
        self.owned = [name for name in names if owners[name] == stage.rank]

    def _owners(self, costs: dict[str, int]) -> dict[str, int]:
        """Assign matrices to ranks: the most expensive first, each to the rank with the least work so far."""
        loads, owners = [0] * self.stage.size, {}
        for name in sorted(costs, key=lambda name: (-costs[name], name)):
            owners[name] = min(range(self.stage.size), key=loads.__getitem__)
            loads[owners[name]] += costs[name]
        return owners

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        shard = self.shards[name]
        return tuple(
            count * (self.tensor.size if dim == shard.dim else 1) for dim, count in enumerate(shard.shape)
        )

    def replace_(
        self,
        updates: Sequence[torch.Tensor],
        function: Callable[[list[tuple[str, torch.Tensor]]], None],
        dtype: torch.dtype,
    ) -> None:
        """Apply `function` in place to all whole matrices, each on one rank, and update `updates` with the
        results.

        Each of the `updates` has the shape of its tensor in self.tensors. Parts are sent in `dtype`.
        """
        if self.stage.size == 1:
            wholes = []
            for update, held in zip(updates, self.tensors):
                for name, start, count, offset in held.parts:
                    assert start == 0 and count == torch.Size(self.shards[name].shape).numel()
                    whole = update.view(-1)[offset : offset + count].view(self.shards[name].shape)
                    wholes.append((name, whole))
            function(wholes)
            return
        device, flat = updates[0].device, [update.view(-1) for update in updates]
        pieces = [
            flat[number][part.offset : part.offset + part.count]
            for entries in self.sent
            for number, part in entries
        ]
        given = torch.cat(pieces).to(dtype) if pieces else torch.empty(0, dtype=dtype, device=device)
        giving = [sum(part.count for _, part in entries) for entries in self.sent]
        taking = [sum(count for _, _, _, count in entries) for entries in self.received]
        taken = given.new_empty(sum(taking))
        dist.all_to_all_single(taken, given, taking, giving, group=self.stage.process_group)

        parts = self._parts(taken)
        wholes = [(name, self._joined(name, parts[name])) for name in self.owned]
        function(wholes)
        for name, whole in wholes:
            self._cut(name, whole, parts[name])

        dist.all_to_all_single(given, taken, giving, taking, group=self.stage.process_group)
        for piece, answer in zip(pieces, given.split([len(piece) for piece in pieces])):
            piece.copy_(answer)

    def _parts(self, taken: torch.Tensor) -> dict[str, list[tuple[int, int, torch.Tensor]]]:
        """Return the received parts of each matrix: [(tensor rank, first element, view of `taken`)]."""
        found: dict[str, list[tuple[int, int, torch.Tensor]]] = {name: [] for name in self.owned}
        offset = 0
        for entries in self.received:
            for place, name, start, count in entries:
                found[name].append((place, start, taken[offset : offset + count]))
                offset += count
        return found

    def _joined(self, name: str, parts: list[tuple[int, int, torch.Tensor]]) -> torch.Tensor:
        shard = self.shards[name]
        # [t, ..]: the part of each tensor-parallel rank; a single part if every rank holds the whole matrix.
        shares = parts[0][2].new_empty((1 if shard.dim is None else self.tensor.size, *shard.shape))
        for place, start, values in parts:
            shares[place if shard.dim is not None else 0].view(-1)[start : start + len(values)] = values
        return torch.cat(list(shares), dim=shard.dim or 0)

    def _cut(self, name: str, whole: torch.Tensor, parts: list[tuple[int, int, torch.Tensor]]) -> None:
        shard = self.shards[name]
        size = 1 if shard.dim is None else self.tensor.size
        shares = [share.reshape(-1) for share in whole.chunk(size, dim=shard.dim or 0)]
        for place, start, values in parts:
            share = shares[place if shard.dim is not None else 0]
            values.copy_(share[start : start + len(values)])
