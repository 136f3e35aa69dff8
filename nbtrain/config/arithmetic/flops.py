"""Floating-point operations of training, from the matrix products of the model.

Per token and forward pass, a product with an [m, n] matrix costs 2 m n:

    layer      8 h^2 + 4 h f       query/key/value, projection, MLP; in general twice their weights (shape.py)
               4 s h               scores and their product with the values, over all s positions
    logits     2 h V

h is the hidden size, f the width of the MLP, s the sequence length, V the vocabulary size and L the number of
layers.

The backward pass costs twice the forward one. Causality is not deducted, as in Megatron-LM (arXiv:2104.04473,
section 5.1), so that MFU is comparable with published numbers. A sliding window is not deducted either:
Megatron-LM's count (training.py, num_floating_point_operations) ignores --window-size. With f = 4 h the sum
is

    72 L h^2 (1 + s / 6h + V / 12Lh)   per token, forward and backward

Recomputation counts as hardware FLOPs, not as model FLOPs. Full activation checkpointing runs the layers'
forward pass twice. Selective checkpointing computes the scores and their product with the values twice, if
the attention kernel keeps the scores (attention_kernels.py); recomputing the MLP's activation takes no
product. Products that flash attention repeats inside its own backward pass are not counted, as is usual. A
device's share is the total divided by world_size: the products of a sequence are split between the tensor,
pipeline, Ulysses and context-parallel ranks, data-parallel ranks process other sequences, and no product is
computed on two ranks.

Megatron-DeepSpeed logs `24 c B s L h^2 (1 + s/6h + V/16Lh)` for a batch of B sequences, where c is 4 with
activation checkpointing and 3 without. The 16 is right for c = 4. For c = 3, 12 would be right: the formula
counts a quarter too few FLOPs for the logits, which for GPT 125M is 6 % of the total (84.0 instead of 89.5
TFLOP/s). With c = 4, the formula counts recomputation, so no MFU can be computed from it.

Muon's Newton-Schulz iterations run once per step, whatever the batch size, and count neither as model FLOPs
nor as hardware FLOPs. One iteration of an [m, n] matrix X, m <= n, takes 4 m^2 n + 2 m^3: A = X X^T, A^2, and
the product of the two with X.
"""

from nbtrain.config.arithmetic.attention_kernels import keeps_scores
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape


def model_flops_per_token(config: RunConfig) -> float:
    """Return FLOPs of one token's forward and backward pass without recomputation: the numerator of MFU."""
    return model_flops(shape_of(config))


def hardware_flops_per_token(config: RunConfig) -> float:
    """Return FLOPs of one token's forward and backward pass with recomputation: the numerator of HFU."""
    model = config.model
    recomputed = {
        "none": 0.0,
        "selective": model.num_layers * attention_flops_per_token(config) if keeps_scores(config) else 0.0,
        "full": _layers_forward(config),
    }[config.parallel.activation_checkpointing.granularity]
    return model_flops_per_token(config) + recomputed


def peak_flops(config: RunConfig, device: str | None) -> float | None:
    """Return the datasheet peak FLOP/s of a device in the run's number format. None if the peak is not known.

    The peak is the denominator of MFU and HFU. `device` is the name of the device that computes, as torch
    reports it, and not resources.gpu_type, which is optional and may name another GPU.
    """
    row = find_device(device)
    return row.peak(config.precision.dtype) if row else None


def megatron_deepspeed_tflops(config: RunConfig, samples_per_second: float) -> float:
    """Return TFLOP/s per device as Megatron-DeepSpeed e7bff5ec logs it, for comparison with its logs.

    Source: megatron/utils.py, throughput_calculator; the top of this file explains its error.
    """
    model = config.model
    layers, hidden, seq = model.num_layers, model.hidden_size, model.seq_length
    factor = 4 if config.parallel.activation_checkpointing.granularity == "full" else 3
    per_token = 24.0 * factor * layers * hidden**2
    per_token *= 1 + seq / (6 * hidden) + config.padded_vocab_size / (16 * layers * hidden)
    return per_token * seq * samples_per_second / config.world_size / 1e12


def block_flops_per_token(config: RunConfig) -> float:
    """Return FLOPs of one token's forward pass through one transformer block."""
    return block_forward(shape_of(config))


def attention_flops_per_token(config: RunConfig) -> float:
    """Return FLOPs of one token's forward pass through one block's attention core.

    The attention core computes the scores, and the product of the scores with the values.
    """
    return attention_forward(config.shape)


def logits_flops_per_token(config: RunConfig) -> float:
    """Return FLOPs of one token's forward pass through the output layer."""
    return logits_forward(config.shape)


def block_forward(shape: Shape) -> float:
    """Return FLOPs of one token's forward pass through one block."""
    return 2 * (shape.attention_weights + shape.mlp_weights) + attention_forward(shape)


def attention_forward(shape: Shape) -> float:
    """Return FLOPs of one token's forward pass through a block's attention core.

    The token attends to all positions.
    """
    return 4 * shape.seq_length * shape.query_width


def logits_forward(shape: Shape) -> float:
    """Return FLOPs of one token's forward pass through the output layer."""
    return 2 * shape.output_weights


def model_flops(shape: Shape) -> float:
    """Return FLOPs of one token's forward and backward pass without recomputation."""
    return 3 * (shape.num_layers * block_forward(shape) + logits_forward(shape))


def _layers_forward(config: RunConfig) -> float:
    return config.model.num_layers * block_flops_per_token(config)


def newton_schulz_flops(rows: int, columns: int, steps: int) -> int:
    """Return FLOPs of Muon's Newton-Schulz iterations for one matrix in one optimizer step.

    train/engine/newton_schulz.py runs them.
    """
    least, most = min(rows, columns), max(rows, columns)
    return steps * (4 * least**2 * most + 2 * least**3)


def muon_flops_by_parameter(shape: Shape, steps: int) -> list[int]:
    """Return FLOPs of Muon's iterations per optimizer step, for each matrix parameter of a block.

    Queries, keys and values are packed into one parameter.
    """
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    packed = [(shape.query_width, hidden), (shape.kv_width, hidden), (shape.kv_width, hidden)]
    alone = [(hidden, shape.query_width), *[(ffn, hidden)] * (1 + shape.gated), (hidden, ffn)]
    return [
        sum(newton_schulz_flops(*one, steps) for one in packed),
        *(newton_schulz_flops(*one, steps) for one in alone),
    ]
