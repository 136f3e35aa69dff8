"""Muon in plain torch, one matrix after the other in fp32, without nbtrain's code: the reference for every
layout.

Written from the algorithm's own page (kellerjordan.github.io/posts/muon) and arXiv:2502.16982, section 2.2;
the minimum norm is torch.optim.Muon's. Query, key and value of a packed matrix are orthogonalized separately.
"""

import math
from typing import Any

import torch

from tests.parity.plain_gpt import PlainGPT


def orthogonal(matrix: torch.Tensor, iterations: int) -> torch.Tensor:
    """Approximate U V^T of the matrix's singular value decomposition."""
    x = matrix / max(matrix.pow(2).sum().sqrt().item(), 1e-7)
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(iterations):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class PlainMuon:
    """Optimizer for the matrices of a model's transformer layers."""

    def __init__(self, model: PlainGPT, config: Any):
        self.settings, self.groups = config.optimizer, config.model.resolved_num_query_groups
        self.head_size = config.model.resolved_kv_channels
        self.factor = (self.settings.muon_lr or config.lr_schedule.lr) / config.lr_schedule.lr
        self.held = {
            name: value
            for name, value in model.named_parameters()
            if name.startswith("layers.") and value.ndim == 2
        }
        self.momentum = {name: torch.zeros_like(value) for name, value in self.held.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the weights with the clipped gradients; `lr` is the learning rate that the schedule
        gives.
        """
        settings, lr = self.settings, lr * self.factor
        for name, value in self.held.items():
            gradient, mean = value.grad, settings.muon_momentum
            self.momentum[name] = mean * self.momentum[name] + (1 - mean) * gradient
            update = self.momentum[name]
            if settings.muon_nesterov:
                update = mean * update + (1 - mean) * gradient
            value *= 1 - lr * settings.weight_decay
            value -= lr * self._orthogonalized(name, update)

    def _orthogonalized(self, name: str, update: torch.Tensor) -> torch.Tensor:
        if "query_key_value" not in name:
            return self._one(update)
        # [g, n/g + 2, d, h]
        packed = update.view(self.groups, -1, self.head_size, update.shape[1])
        found = torch.empty_like(packed)
        for heads in (slice(None, -2), slice(-2, -1), slice(-1, None)):
            part = packed[:, heads]
            found[:, heads] = self._one(part.reshape(-1, update.shape[1])).view(part.shape)
        return found.view_as(update)

    def _one(self, update: torch.Tensor) -> torch.Tensor:
        rows, columns = update.shape
        scale = {
            "spectral": math.sqrt(max(rows, columns)),
            "unit_rms_norm": math.sqrt(rows / columns),
            "shape_scaling": math.sqrt(max(1, rows / columns)),
        }[self.settings.muon_scale_mode]
        found = orthogonal(update, self.settings.muon_num_ns_steps)
        return found * scale * self.settings.muon_extra_scale_factor
