"""Rotary positions (RoPE, arXiv:2104.09864): rotates queries and keys by angles that grow with the position.

The first r elements of a head form r / 2 pairs (j, j + r / 2), as in Megatron and Hugging Face. Pair j is
rotated by the angle position * base^(-2j/r). Scaling reduces the angles, so that a model supports longer
sequences than the sequences of its original training:

    linear    divides all angles by the factor (arXiv:2306.15595)
    llama3    divides the angles of pairs that turn less than low_freq_factor times over the original length,
              and interpolates between low_freq_factor and high_freq_factor turns (Llama 3.1)
    yarn      interpolates between beta_slow and beta_fast turns, and multiplies queries and keys by
              0.1 ln(factor) + 1 (arXiv:2309.00071)

Angles are computed in fp32. Cosines and sines are rounded to the format of the queries, as in Megatron and
Hugging Face.

Shapes: b sequences, n heads, s tokens, d head size, r rotary size
"""

import functools
import math
from typing import NamedTuple

import torch

from nbtrain.model.gpt_config import GPTConfig, RopeScaling


class Rotation(NamedTuple):
    """Cosines and sines for queries and keys at certain positions: [s, r] each, or [b, 1, s, r]."""

    cosine: torch.Tensor
    sine: torch.Tensor
    """Negative sines for the first elements of the pairs, followed by sines for the second elements."""


def rotation_of(config: GPTConfig, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Return the rotation for `positions`, which are [s] or, if they differ between sequences, [b, s]."""
    size, base, scaling = config.rotary_size, config.rotary_base, config.rope_scaling
    frequencies, scale = _kept_frequencies(size, base, scaling, positions.device)
    angles = positions.float().unsqueeze(-1) * frequencies
    if angles.dim() > 2:
        angles = angles.unsqueeze(1)
    cosine, sine = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return Rotation(torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1))


def rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate queries or keys [b, n, s, d]. Elements from r on stay unchanged."""
    size = rotation.cosine.shape[-1]
    part = x[..., :size]
    first, second = part.chunk(2, dim=-1)
    turned = part * rotation.cosine + torch.cat([second, first], dim=-1) * rotation.sine
    return turned if size == x.shape[-1] else torch.cat([turned, x[..., size:]], dim=-1)


@functools.lru_cache(16)
def _kept_frequencies(
    size: int, base: float, scaling: RopeScaling | None, device: torch.device
) -> tuple[torch.Tensor, float]:
    """Return inverse_frequencies() on a device, cached because decoding needs them for each token."""
    # Tensors created in inference mode could not be used in training.
    with torch.inference_mode(False):
        frequencies, scale = inverse_frequencies(size, base, scaling)
        return frequencies.to(device), scale


def inverse_frequencies(size: int, base: float, scaling: RopeScaling | None) -> tuple[torch.Tensor, float]:
    """Return (radians of each pair per position, fp32 [r / 2] on the CPU; factor for cosines and sines)."""
    plain = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, size, base, scaling), 0.1 * math.log(scaling.factor) + 1.0


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def _yarn(plain: torch.Tensor, size: int, base: float, scaling: RopeScaling) -> torch.Tensor:
    def pair(turns: float) -> float:
        """Return the index, as a real number, of the pair that turns this often over the original length."""
        length = scaling.original_max_position_embeddings
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = (
        max(math.floor(pair(scaling.beta_fast)), 0),
        min(math.ceil(pair(scaling.beta_slow)), size - 1),
    )
    # Avoid a division by 0, as in the authors' code.
    width = (last - first) or 0.001
    divided = ((torch.arange(size // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return plain * (1 - divided + divided / scaling.factor)
