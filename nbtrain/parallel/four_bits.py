"""Frozen matrices in 4 bits (QLoRA, arXiv:2305.14314, section 3), computed by bitsandbytes.

A block of 64 consecutive numbers of a matrix is stored as 64 4-bit indices into a table of 16 numbers, plus
the largest absolute value of the block (absmax) in fp32. With double quantization, the mean over the matrix
is subtracted from the absmax values, and every 256 of them are stored as 8-bit numbers with a common
constant.

Products work as in bitsandbytes' Linear4bit: the matrix is restored in the format of x, and again in the
backward pass, which computes only the gradient of x. The stored numbers are buffers instead of parameters, so
DeepSpeed does not cast, partition, update or save them.
"""

from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from nbtrain.base.errors import ConfigError
from nbtrain.base.extras import install_command

# Defaults of bitsandbytes, peft and transformers.
BLOCK_ELEMENTS = 64
NESTED_BLOCK_ELEMENTS = 256


class FourBits(NamedTuple):
    """The format of 4-bit matrices, with names as in transformers' BitsAndBytesConfig."""

    quant_type: str
    """Kind of 4-bit numbers: nf4 or fp4."""
    use_double_quant: bool


class FourBitMatrix(nn.Module):
    """A frozen matrix [o, i] in 4 bits that replaces `weight`.

    It has the shape, format, device and sharding of `weight`. All its numbers are 0 until hold() is called.
    forward(x [.., i], bias [o]) -> [.., o].
    """

    packed: torch.Tensor
    absmax: torch.Tensor
    nested_absmax: torch.Tensor
    offset: torch.Tensor

    def __init__(self, weight: torch.Tensor, how: FourBits):
        super().__init__()
        self.how, self.shape, self.dtype = how, weight.shape, weight.dtype
        self.partition_dim: int | None = getattr(weight, "partition_dim", None)
        elements = weight.numel()
        blocks = -(-elements // BLOCK_ELEMENTS)
        parts = {"packed": (torch.uint8, -(-elements // 2)), "absmax": (torch.float32, blocks)}
        if how.use_double_quant:
            parts["absmax"] = torch.uint8, blocks
            parts["nested_absmax"] = torch.float32, -(-blocks // NESTED_BLOCK_ELEMENTS)
            parts["offset"] = torch.float32, 1
        for name, (dtype, size) in parts.items():
            held = torch.zeros(size, dtype=dtype, device=weight.device)
            self.register_buffer(name, held, persistent=False)

    @torch.no_grad()
    def hold(self, weight: torch.Tensor) -> None:
        """Store `weight`: round it to the matrix's format, and quantize it to 4 bits."""
        packed, state = quantized(weight.to(self.packed.device, self.dtype).view(self.shape), self.how)
        self.packed.copy_(packed.view(-1))
        self.absmax.copy_(state.absmax)
        if self.how.use_double_quant:
            self.nested_absmax.copy_(state.state2.absmax)
            self.offset.copy_(state.offset.view(1))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return bitsandbytes().matmul_4bit(x, self.packed, self._state(), bias=bias)

    def dequantized(self) -> torch.Tensor:
        """Return the restored matrix, in its own format."""
        return bitsandbytes().functional.dequantize_4bit(self.packed.view(-1, 1), self._state())

    def _state(self) -> Any:
        functional, device = bitsandbytes().functional, self.packed.device
        nested = {}
        if self.how.use_double_quant:
            second = functional.QuantState(
                self.nested_absmax,
                code=_absmax_code(device),
                blocksize=NESTED_BLOCK_ELEMENTS,
                dtype=torch.float32,
            )
            nested = {"offset": self.offset[0], "state2": second}
        return functional.QuantState(
            self.absmax,
            shape=self.shape,
            code=_code(self.how.quant_type, device),
            blocksize=BLOCK_ELEMENTS,
            quant_type=self.how.quant_type,
            dtype=self.dtype,
            **nested,
        )


def quantized(weight: torch.Tensor, how: FourBits) -> tuple[torch.Tensor, Any]:
    """Return (packed numbers, bitsandbytes' QuantState) of a matrix."""
    return bitsandbytes().functional.quantize_4bit(
        weight.contiguous(),
        blocksize=BLOCK_ELEMENTS,
        compress_statistics=how.use_double_quant,
        quant_type=how.quant_type,
    )


def rounded(weight: torch.Tensor, how: FourBits) -> torch.Tensor:
    """Quantize a matrix to 4 bits, and return the restored matrix in its own format."""
    return bitsandbytes().functional.dequantize_4bit(*quantized(weight, how))


@lru_cache(maxsize=1)
def bitsandbytes() -> ModuleType:
    """Import and return the package. Raises ConfigError if it cannot be imported."""
    try:
        import bitsandbytes as found
    except ImportError as error:
        raise ConfigError(
            "lora.load_in_4bit needs the package bitsandbytes, which cannot be imported "
            f"({error}). Install it: {install_command('qlora')}."
        ) from None
    return found


# All matrices on a device share these tables.
@lru_cache
def _code(quant_type: str, device: torch.device) -> torch.Tensor:
    return bitsandbytes().functional.get_4bit_type(quant_type, device=device)


@lru_cache
def _absmax_code(device: torch.device) -> torch.Tensor:
    return bitsandbytes().functional.create_dynamic_map().to(device)
