"""Memory that a setup that trains all weights would need with LoRA instead (arXiv:2106.09685).

For a run with the section `lora`, estimate.py itself counts the adapters (Setup.adapter_sizes).

    weights                frozen 16-bit weights have no gradients, master copy or moments
    each adapted matrix    an i x o matrix gets r (i + o) trained parameters: A is r x i, B is o x r
                           (section 4.1)
    adapter states         4 bytes of gradient, 4 of master copy and 8 of moments per parameter; ZeRO shards
                           them as in full training
    activations            the same as in full training, because A's gradient needs each input, and r more
                           values per token and matrix
    logits                 no gradient of the embeddings
"""

from dataclasses import replace
from typing import Literal

from nbtrain.config.shape import Shape
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory.estimate import MemoryEstimate, estimate
from nbtrain.planner.memory.stage import Stage, stage_of
from nbtrain.planner.setup.setup import Setup

# The rank that a plan uses by default. Most published adapters have a rank of 8 to 64.
USUAL_RANK = 16

Block = Literal["attention", "mlp"]


def adapter_parameters(shape: Shape, layers: int, rank: int, adapted: tuple[Block, ...]) -> int:
    """Return the number of adapter parameters in `layers` layers.

    `rank` is LoRA's r, and `adapted` the parts of a layer whose matrices have adapters.
    """
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    edges = 0
    if "attention" in adapted:
        edges += hidden + shape.query_width + 2 * shape.kv_width + shape.query_width + hidden
    if "mlp" in adapted:
        opened = 2 if shape.gated else 1
        edges += opened * (hidden + ffn) + ffn + hidden
    return layers * rank * edges


def estimate_lora(
    setup: Setup, rank: int, adapted: tuple[Block, ...] = ("attention", "mlp")
) -> MemoryEstimate:
    """Estimate the setup's fullest stage with frozen weights, and adapters of rank `rank` on its matrices."""
    whole = estimate(setup)
    stage = stage_of(setup, whole.stage)
    trained = adapter_parameters(setup.shape, stage.layers, rank, adapted) // setup.tensor_parallel_size
    ranks, zero, parts = setup.zero_size, setup.zero_stage, dict(whole.parts)
    frozen = 2 * stage.elements // (ranks if zero == 3 else 1)
    cut = ranks if zero else 1
    parts["weights"] = frozen + 2 * trained // (ranks if zero == 3 else 1)
    parts["gradients"] = 4 * trained // (ranks if zero >= 2 else 1)
    parts["master_copy"] = 4 * trained // cut
    parts["optimizer"] = 8 * trained // cut
    parts["activations"] += _inner(setup, stage, rank, adapted)
    if setup.engine == "nbtrain":
        vocabulary = setup.shape.padded_vocab_size // setup.tensor_parallel_size
        parts["logits"] -= 4 * vocabulary * setup.shape.hidden_size if stage.is_last else 0
    allocated = sum(parts.values()) - parts["runtime"] - parts["reserve"]
    parts["reserve"] = buffers.reserve_bytes(setup, allocated)
    return replace(whole, parts=parts)


def _inner(setup: Setup, stage: Stage, rank: int, adapted: tuple[Block, ...]) -> int:
    """Return the bytes of activations that are kept for the gradient of B, for all micro batches in flight.

    Each adapted matrix keeps r values per token; full recomputation keeps none of them.
    """
    if setup.recompute == "full":
        return 0
    matrices = 2 * len(adapted) + ("mlp" in adapted and setup.shape.gated)
    token = rank * matrices * activations.product_element(setup)
    held = activations.in_flight(setup, stage.number)
    return int(setup.tokens_per_micro_batch * token * stage.layers * held)
