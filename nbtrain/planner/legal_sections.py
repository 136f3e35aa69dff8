"""Reasons why a run's adapters, preference pairs or prescaled gradients forbid a layout, a clause each.

They are the rules of config/rules/lora.py, dpo.py and zero.py on plain numbers; tests/planner/test_legal.py
compares both.
"""

from collections.abc import Iterator

from nbtrain.config.arithmetic.four_bits import BLOCK_ELEMENTS
from nbtrain.config.arithmetic.shape import Shape
from nbtrain.config.schema import RunConfig


def cut_problems_of_sections(
    config: RunConfig, shape: Shape, tensor: int, pipeline: int, ulysses: int
) -> Iterator[str]:
    """Yield the reasons why the run's dpo and lora sections rule out these numbers of ranks."""
    if config.dpo is not None and ulysses > 1:
        yield f"ds_sequence_parallel_size({ulysses}) splits answers, and dpo sums over each"
    lora, groups = config.lora, shape.num_query_groups
    if lora is None:
        return
    if "query_key_value" in lora.targets and groups % tensor:
        yield f"tensor_parallel_size({tensor}) does not divide num_query_groups({groups}), as lora needs it"
    if not lora.load_in_4bit:
        return
    if pipeline > 1:
        yield "matrices in 4 bits (lora.load_in_4bit) are not supported in pipeline stages"
    if tensor > 1 and lora.bnb_4bit_use_double_quant:
        yield f"tensor_parallel_size({tensor}) shards a matrix, and bnb_4bit_use_double_quant needs its mean"
    cut = (shape.query_width, shape.ffn_hidden_size)
    if tensor > 1 and (
        shape.hidden_size % BLOCK_ELEMENTS or any(width % (BLOCK_ELEMENTS * tensor) for width in cut)
    ):
        yield f"tensor_parallel_size({tensor}) splits blocks of {BLOCK_ELEMENTS} numbers in 4 bits"


def stage_problems_of_sections(config: RunConfig, zero_stage: int) -> Iterator[str]:
    """Yield the reasons why the run's lora section or prescale_gradients rules out a ZeRO stage."""
    if config.lora is not None and config.lora.load_in_4bit and zero_stage == 3:
        yield "ZeRO 3 shards parameters, and matrices in 4 bits (lora.load_in_4bit) are whole on each rank"
    if config.parallel.prescale_gradients and zero_stage:
        yield f"ZeRO {zero_stage} does not go with prescale_gradients"
