"""Number of blocks of each pipeline stage, chosen so that the slowest stage is as fast as possible.

A pipeline runs at the pace of its slowest stage (arXiv:2104.04473, section 2.2). All stages hold blocks, and
the last one computes the logits too, which cost as much as several blocks if the vocabulary is large and the
model is narrow. The last stage then gets fewer blocks. The embeddings cost next to nothing. Costs are the
FLOPs of flops.py. Blocks that do not divide evenly go to later stages, because under 1F1B the first stages
hold activations of more micro batches.
"""

from nbtrain.config.arithmetic.flops import block_forward, logits_forward
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape


def stage_layers(config: RunConfig) -> list[int]:
    """Return the number of blocks in each pipeline stage, or parallel.pipeline_stage_layers if that is set.

    Each stage has at least one block: check.py rejects a pipeline with more stages than blocks.
    """
    if config.parallel.pipeline_stage_layers is not None:
        return list(config.parallel.pipeline_stage_layers)
    full = config.parallel.activation_checkpointing.granularity == "full"
    return cut_evenly(config.shape, config.parallel.pipeline_parallel_size, full)


def cut_evenly(shape: Shape, stages: int, recomputed: bool) -> list[int]:
    """Return the number of blocks in each of `stages` stages.

    `recomputed` says whether the forward pass of each block runs twice, because its activations are
    recomputed.
    """
    layers = shape.num_layers
    if stages == 1:
        return [layers]
    # With recomputation, a block's forward pass runs twice. Logits are never recomputed.
    passes = 4 / 3 if recomputed else 1.0
    block, logits = passes * block_forward(shape), logits_forward(shape)

    def slowest(in_last: int) -> float:
        others = -(-(layers - in_last) // (stages - 1))
        return max(others * block, in_last * block + logits)

    # Several sizes of the last stage may be equally fast: take the largest, which is the most even division.
    most = max(layers // stages, 1)
    last = min(range(most, 0, -1), key=slowest)
    rest, more = divmod(layers - last, stages - 1)
    return [rest] * (stages - 1 - more) + [rest + 1] * more + [last]
