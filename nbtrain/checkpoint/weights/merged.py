"""The weights of a run with adapters, merged into one model.

    W + s B A                            s is lora.scale
    W + s [B_q A_q; B_k A_k; B_v A_v]    packed queries, keys and values, in the rows of each group
    rows of trained tokens               replace the rows of embedding and output layer
    l * W, l * b                         IA3, l is its vector: rows of keys and values, and their biases
    W * l                                IA3: columns of the MLP's second matrix

The sums are computed in fp32, from the masters. As in a checkpoint, any range of elements of any
tensor-parallel part can be read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nbtrain.checkpoint.weights.masters import MadeWhole, Weights
from nbtrain.checkpoint.weights.store import MASTER, CheckpointStore, StoredParameter
from nbtrain.config.schema import RunConfig
from nbtrain.model.adapters import qkv_parts
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.names import adapters_of, trained_rows_of


class MergedWeights(MadeWhole):
    """The parameters of `base`, merged with the adapters in a checkpoint of the run with `config`."""

    def __init__(self, base: Weights, adapters: CheckpointStore, config: RunConfig):
        assert config.lora is not None
        self.base, self.adapters = base, adapters
        self.folder: Path = adapters.folder
        self.dtype: torch.dtype = adapters.dtype
        self.manifest: dict[str, Any] = adapters.manifest
        self.vocab_size = base.vocab_size
        self.scale = config.lora.scale
        model = GPTConfig.of(config)
        self.qkv_parts, self.trained_tokens = qkv_parts(model), model.trained_tokens

    @property
    def parameters(self) -> Mapping[str, StoredParameter]:
        """Shapes of the unsharded parameters, without vocabulary padding, by canonical name."""
        return self.base.parameters

    def weights(self, name: str) -> torch.Tensor:
        """Return an unsharded weight in the number format that the run computes with."""
        return self.full(name).to(self.dtype)

    def full(self, name: str) -> torch.Tensor:
        """Return an unsharded weight in fp32."""
        weight = self.base.read(name, MASTER).view(self.parameters[name].shape)
        if (vector := self._vector(name)) is not None:
            parts = self.qkv_parts if "query_key_value" in name else None
            return rescaled(weight, self.adapters.full(vector), parts)
        if (rows := trained_rows_of(name)) in self.adapters.parameters:
            return weight.index_copy(0, torch.tensor(self.trained_tokens), self.adapters.full(rows))
        if adapters_of(name)[0] not in self.adapters.parameters:
            return weight
        a, b = (self.adapters.full(each) for each in adapters_of(name))
        return weight + self.scale * product(a, b, self.qkv_parts)

    def unchanged(self, name: str) -> Weights | None:
        """Return `base` if no adapter changes this parameter; None otherwise."""
        beside = (adapters_of(name)[0], trained_rows_of(name), self._vector(name))
        return None if any(one in self.adapters.parameters for one in beside) else self.base

    def _vector(self, name: str) -> str | None:
        """Return the name of the IA3 vector that multiplies a weight or bias; None if no vector does."""
        module, _, kind = name.rpartition(".")
        vector = f"{module}.ia3"
        of_bias = kind == "bias" and module.endswith("query_key_value")
        return vector if vector in self.adapters.parameters and (kind == "weight" or of_bias) else None


def rescaled(weight: torch.Tensor, vector: torch.Tensor, parts: tuple[int, ...] | None) -> torch.Tensor:
    """Multiply a matrix or bias by an IA3 vector: its rows of keys and values, or all of its columns.

    `parts` are the numbers of rows of queries, keys and values of a group; None means all columns.
    """
    if parts is None:
        return weight * vector
    units = weight.unflatten(0, (-1, sum(parts))).clone()
    units[:, parts[0] :] *= vector.view(len(units), sum(parts[1:]), *[1] * (weight.dim() - 1))
    return units.flatten(0, 1)


def product(a: torch.Tensor, b: torch.Tensor, parts: tuple[int, ...]) -> torch.Tensor:
    """Return the unscaled matrix that an adapter adds; `parts` are the rows of packed projections."""
    rank = b.shape[1]
    if len(a) == rank:
        return b @ a
    units = b.view(-1, sum(parts), rank).split(parts, 1)
    return torch.cat([rows @ low for rows, low in zip(units, a.split(rank), strict=True)], 1).flatten(0, 1)
