"""Matrices that a run stores in 4 bits (lora.load_in_4bit): quantized loading, and their restored values.

    load_four_bits(engine, weights, tensor, piece_elements)   loads initial matrices and quantizes each one
    FourBitWeights(base, config)                              initial weights, quantized and restored

A part of a matrix has the same bits as in the whole matrix, because matrices are split only between blocks
(config/rules/lora.py). The model is therefore the same in every layout.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nbtrain.checkpoint.weights.masters import MadeWhole, Weights
from nbtrain.checkpoint.weights.store import DTYPES, MASTER, StoredParameter, TensorPart
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.lora_section import LoraConfig
from nbtrain.model.names import is_block_matrix
from nbtrain.parallel.four_bits import FourBitMatrix, FourBits, rounded


def load_four_bits(engine: Any, weights: Weights, tensor: tuple[int, int], piece_elements: int) -> None:
    """Load this rank's part of `weights` into each 4-bit matrix of `engine`.

    At one time, memory holds one matrix in the run's format and `piece_elements` elements of this matrix in
    fp32. The arguments have the same meaning as in reshape.load_masters().
    """
    for name, matrix in engine.module.named_modules():
        if not isinstance(matrix, FourBitMatrix):
            continue
        part = TensorPart(*tensor, matrix.partition_dim)
        flat = torch.empty(matrix.shape.numel(), dtype=matrix.dtype, device=matrix.packed.device)
        for first in range(0, len(flat), piece_elements):
            wanted = min(piece_elements, len(flat) - first)
            flat[first : first + wanted].copy_(weights.read(name, MASTER, part, first, wanted))
        matrix.hold(flat)


class FourBitWeights(MadeWhole):
    """The parameters of `base`, with the matrices of the blocks replaced by their values restored from 4
    bits.
    """

    def __init__(self, base: Weights, config: RunConfig):
        assert config.lora is not None
        self.base = base
        self.how = how_of(config.lora)
        self.held_as = torch.float32 if config.precision.autocast else DTYPES[config.precision.dtype]

    @property
    def folder(self) -> Path:
        return self.base.folder

    @property
    def dtype(self) -> torch.dtype:
        """Format of the base weights."""
        return self.base.dtype

    @property
    def vocab_size(self) -> int:
        return self.base.vocab_size

    @property
    def parameters(self) -> Mapping[str, StoredParameter]:
        """Shapes of the unsharded parameters, without vocabulary padding, by canonical name."""
        return self.base.parameters

    def full(self, name: str) -> torch.Tensor:
        """Return an unsharded matrix of a block, restored from 4 bits, in fp32."""
        whole = self.base.read(name, MASTER).view(self.parameters[name].shape).to(self.held_as)
        return rounded(whole, self.how).float()

    def unchanged(self, name: str) -> Weights | None:
        """Return `base` for parameters that are not quantized (embeddings, norms, biases); otherwise None."""
        return None if is_block_matrix(name) else self.base


def how_of(lora: LoraConfig) -> FourBits:
    """Return the 4-bit format that a run's section `lora` sets for frozen matrices."""
    return FourBits(lora.bnb_4bit_quant_type, lora.bnb_4bit_use_double_quant)
