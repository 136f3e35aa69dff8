"""Limits that a model, its batch and its options set for a layout, as functions of plain numbers.

The rules for run YAMLs and the planner's search call the same functions, so that both accept the same
layouts. Each function yields a Broken for every limit that its numbers break, and nothing for a valid layout.
The functions take numbers instead of a RunConfig, because a search checks thousands of layouts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nbtrain.base.text.amounts import counted
from nbtrain.config.arithmetic.divisors import nearest_divisors, nearest_multiples
from nbtrain.config.arithmetic.four_bits import BLOCK_ELEMENTS
from nbtrain.config.arithmetic.layout_words import MODEL_KINDS
from nbtrain.config.arithmetic.shared_memory import read_ahead_bytes
from nbtrain.config.findings import mistake
from nbtrain.config.rules.wording import Problems, join, setting_text, value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.kubernetes_section import KubernetesConfig
from nbtrain.config.sections.lora_section import LoraConfig
from nbtrain.config.shape import Shape

# cuBLAS requires every dimension of an FP8 matrix product to be a multiple of 16.
FP8_MULTIPLE = 16


class Broken(NamedTuple):
    """A limit that a layout breaks, worded for a check of the run (`rule`) and for a search (`clause`)."""

    key: str
    """Key of the setting to change, as in a run YAML."""
    rule: str
    """The limit with its numbers and the fix, as a predicate whose subject is the setting."""
    clause: str
    """The reason why the layout is rejected, as a clause without place and fix."""
    value: str = ""
    """The quantity that the rule is about, as "name = value"; "" if the rule is about the setting itself."""


def problems_of(config: RunConfig, broken: Iterable[Broken]) -> Problems:
    """Yield an error for each broken limit."""
    for limit in broken:
        yield mistake(config, limit.key, f"{limit.value or setting_text(config, limit.key)}\n  {limit.rule}")


def no_multiple(config: RunConfig, key: str, unit: int, words: str) -> Problems:
    """Yield an error if a setting is not a multiple of `unit`. Messages show `unit` as the text `words`."""
    return problems_of(config, is_multiple(key, value_of(config, key), unit, words))


def no_divisor(config: RunConfig, key: str, whole: int, words: str) -> Problems:
    """Yield an error if a setting does not divide `whole`. Messages show `whole` as the text `words`."""
    return problems_of(config, divides(key, value_of(config, key), whole, words))


def divides(key: str, divisor: int, whole: int, words: str) -> Iterator[Broken]:
    """Yield a Broken if `divisor`, the value of `key`, does not divide `whole`.

    `words` is the text for `whole` in messages, such as a product with its factors.
    """
    if whole % divisor:
        nearest = join(nearest_divisors(divisor, whole))
        yield Broken(
            key, f"must divide {words}; nearest: {nearest}.", f"{_of(key, divisor)} does not divide {words}"
        )


def is_multiple(key: str, value: int, unit: int, words: str, name: str = "") -> Iterator[Broken]:
    """Yield a Broken if a value is not a multiple of `unit`.

    `words` is the text for `unit` in messages, such as a product with its factors. `name` is the name of the
    value in messages if it is not the value of `key` itself.
    """
    if value % unit:
        nearest = join(nearest_multiples(value, unit))
        yield Broken(
            key,
            f"must be a multiple of {words}; nearest: {nearest}.",
            f"{f'{name}({value})' if name else _of(key, value)} is not a multiple of {words}",
            f"{name} = {value}" if name else "",
        )


def _of(key: str, value: int) -> str:
    """Return the name and value of a setting, such as "tensor_parallel_size(4)"."""
    return f"{key.rpartition('.')[2]}({value})"


def heads(shape: Shape, tensor: int, ulysses: int) -> Iterator[Broken]:
    """Require the same number of heads on all ranks: first tensor parallelism divides them, then Ulysses."""
    count = shape.num_attention_heads
    words = f"num_attention_heads({count})"
    yield from divides("parallel.tensor_parallel_size", tensor, count, words)
    if count % tensor == 0:
        if tensor > 1:
            words += f" / tensor_parallel_size({tensor}) = {count // tensor}"
        yield from divides("parallel.ds_sequence_parallel_size", ulysses, count // tensor, words)


def mlp_width(shape: Shape, tensor: int, key: str = "model.ffn_hidden_size") -> Iterator[Broken]:
    """Require equal parts of the MLP on all tensor-parallel ranks.

    `key` is the field that sets the MLP width.
    """
    words = f"tensor_parallel_size({tensor})"
    yield from is_multiple(key, shape.ffn_hidden_size, tensor, words, "MLP width")


def query_groups(shape: Shape, tensor: int) -> Iterator[Broken]:
    """Require complete query groups, or equal parts of one group, on each tensor-parallel rank."""
    key, count, groups = "parallel.tensor_parallel_size", shape.num_attention_heads, shape.num_query_groups
    if count % groups or count % tensor:
        return  # Other rules report these cases.
    rows = shape.query_width + 2 * shape.kv_width
    if groups % tensor and tensor % groups:
        sizes = [size for size in range(1, count + 1) if count % size == 0]
        legal = [size for size in sizes if groups % size == 0 or size % groups == 0]
        below = [size for size in legal if size < tensor][-1:]
        above = [size for size in legal if size > tensor][:1]
        yield Broken(
            key,
            f"must be a divisor or a multiple of num_query_groups({groups}), so that each rank has complete "
            f"groups or an equal part of one group; nearest: {join([*below, *above])}.",
            f"tensor_parallel_size({tensor}) must divide num_query_groups({groups}) or be a multiple of it",
        )
    elif rows % tensor:
        unit = tensor // math.gcd(tensor, count + 2 * groups)
        yield Broken(
            key,
            f"must divide the rows of the query, key and value matrix, (num_attention_heads({count}) + 2 * "
            f"num_query_groups({groups})) * kv_channels({shape.kv_channels}) = {rows}, because with fewer "
            "groups than ranks the rows are split evenly. Change tensor_parallel_size, or set kv_channels "
            f"to a multiple of {unit}.",
            f"tensor_parallel_size({tensor}) does not divide the {rows} rows of the query, key and value "
            "matrix",
        )


def stages(shape: Shape, pipeline: int) -> Iterator[Broken]:
    """Require at least one layer on each pipeline stage."""
    layers = shape.num_layers
    if layers < pipeline:
        yield Broken(
            "parallel.pipeline_parallel_size",
            f"must be at most num_layers({layers}), because each stage needs at least one layer.",
            f"pipeline_parallel_size({pipeline}) is more than num_layers({layers})",
        )


def recomputed_layers(interval: int, most: int, pipeline: int) -> Iterator[Broken]:
    """Require that a group of recomputed layers fits on a rank.

    `most` is the number of layers of the largest stage.
    """
    if interval > most:
        where = f"the largest of {pipeline} pipeline stages" if pipeline > 1 else "the model"
        yield Broken(
            "parallel.activation_checkpointing.interval_layers",
            f"must be at most {most}, the number of layers in {where}.",
            f"interval_layers({interval}) is more than {most}, the number of layers in {where}",
        )


def sequence(shape: Shape, ulysses: int, context: int, chunk: int) -> Iterator[Broken]:
    """Require that Ulysses and context parallelism split a sequence into equal parts.

    Each context-parallel rank gets two chunks of the sequence. With FPDT (`chunk` > 0, the chunk's tokens),
    the sequence also divides into chunks, and each chunk is split equally between the Ulysses ranks.
    """
    words, length = f"ds_sequence_parallel_size({ulysses})", shape.seq_length
    yield from is_multiple("model.seq_length", length, ulysses, words)
    if context > 1:
        chunks = f"2 * context_parallel_size({context}) = {2 * context}, because each rank gets two chunks"
        yield from is_multiple("model.seq_length", length, 2 * context, chunks)
    if chunk:
        yield from is_multiple("model.seq_length", length, chunk, f"fpdt_chunk_tokens({chunk})")
    yield from is_multiple(
        "parallel.fpdt_chunk_tokens", chunk, ulysses, f"{words}, because these ranks share each chunk"
    )


def sharded_sequence(shape: Shape, tensor: int, ulysses: int, context: int) -> Iterator[Broken]:
    """Require, with sequence_parallel, that tensor-parallel ranks get equal parts of a sequence.

    If Ulysses or context parallelism splits the sequence first, each part must divide evenly between the
    tensor-parallel ranks.
    """
    words, unit = f"tensor_parallel_size({tensor})", tensor * ulysses * context
    if ulysses > 1:
        words += f" * ds_sequence_parallel_size({ulysses})"
    if context > 1:
        words += f" * context_parallel_size({context})"
    words += f"{f' = {unit}' if unit > tensor else ''} with sequence_parallel"
    yield from is_multiple("model.seq_length", shape.seq_length, unit, words)


def needs_without_mask(setting: str, problem: str) -> str:
    """Return a clause that says why flash attention does not support a setting.

    The flash kernel takes no mask. Where other kernels get a mask, it gets sequence lengths, which work under
    certain conditions only. `problem` is the condition that the run does not meet, and what the run has
    instead, such as "bf16 or fp16, but precision.dtype is fp32".
    """
    return (
        f"flash attention takes sequence lengths instead of a mask, which with {setting} requires {problem}"
    )


def flash_parts(context: int, problem: str | None) -> Iterator[Broken]:
    """Require that a run with flash attention and context parallelism meets the kernel's conditions.

    With context parallelism, a rank's queries may be later in the sequence than its keys, so the flash kernel
    must be called with sequence lengths. `problem` is the reason why this is not possible
    (attention_kernels.lengths_problem), or None if it is possible.
    """
    if context > 1 and problem:
        reason = needs_without_mask(f"context_parallel_size({context})", problem)
        yield Broken(
            "model.attention_backend",
            f"does not support this run: {reason}.\n  Set attention_backend: auto.",
            f"attention_backend(flash): {reason}",
        )


def hpz_partition(size: int, data_axis_size: int) -> Iterator[Broken]:
    """Require that the ranks divide into groups of `size` for ZeRO++'s second copy of the weights (hpZ)."""
    words = f"data_parallel_size * ds_sequence_parallel_size * context_parallel_size = {data_axis_size}"
    yield from divides("parallel.zero_hpz_partition_size", size, data_axis_size, words)


def fp8_sides(shape: Shape, tensor: int) -> Iterator[Broken]:
    """Require that all dimensions of FP8 matrices are multiples of 16 on every rank."""
    sides = {
        "model.hidden_size": shape.hidden_size,
        "model.ffn_hidden_size": shape.ffn_hidden_size,
        "model.kv_channels": shape.query_width,
        "model.num_query_groups": shape.query_width + 2 * shape.kv_width,
    }
    # Dimensions that follow from hidden_size and num_attention_heads are not reported a second time.
    if shape.query_width == shape.hidden_size:
        del sides["model.kv_channels"]
    if shape.num_query_groups == shape.num_attention_heads:
        del sides["model.num_query_groups"]
    for key, width in sides.items():
        if (side := width // tensor) % FP8_MULTIPLE:
            yield Broken(
                key,
                f"gives matrices a dimension of {side} on each rank, with tensor_parallel_size({tensor}), "
                f"but FP8 needs matrix dimensions that are multiples of {FP8_MULTIPLE}. Set fp8: false, or "
                "change the size.",
                f"FP8 needs matrix dimensions that are multiples of {FP8_MULTIPLE}, but with "
                f"tensor_parallel_size({tensor}), {key.rpartition('.')[2]} gives a dimension of {side}",
            )


def fp8_tokens(
    micro: int, length: int, ulysses: int, context: int, name: str = "seq_length"
) -> Iterator[Broken]:
    """Require that the number of tokens in a rank's matrix products is a multiple of 16.

    `name` is the field that sets `length`.
    """
    tokens = micro * length // (ulysses * context)
    if tokens % FP8_MULTIPLE:
        sharing = f"context_parallel_size({context})"
        if context == 1:
            sharing = f"ds_sequence_parallel_size({ulysses})"
        product = f"micro_batch_size({micro}) * {name}({length}) / {sharing} = {tokens}"
        yield Broken(
            "precision.fp8",
            f"needs a multiple of {FP8_MULTIPLE} tokens on each rank, but {product}. Set fp8: false, or "
            f"change {name}.",
            f"FP8 needs a multiple of {FP8_MULTIPLE} tokens on each rank, but {product}",
        )


def adapter_groups(lora: LoraConfig, shape: Shape, tensor: int) -> Iterator[Broken]:
    """Require complete query groups on each tensor-parallel rank if query_key_value has adapters."""
    groups = shape.num_query_groups
    if "query_key_value" in lora.targets and groups % tensor:
        yield Broken(
            "parallel.tensor_parallel_size",
            f"must divide model.num_query_groups({groups}), because lora.targets contains query_key_value. "
            "Lower tensor_parallel_size, or remove query_key_value from lora.targets.",
            f"tensor_parallel_size({tensor}) does not divide num_query_groups({groups}), which adapters on "
            "query_key_value (lora.targets) require",
        )


def four_bit_stages(lora: LoraConfig, pipeline: int, zero_stage: int) -> Iterator[Broken]:
    """Require that 4-bit matrices are not combined with ZeRO 3 or a pipeline, which do not support them."""
    if not lora.load_in_4bit:
        return
    if zero_stage == 3:
        yield Broken(
            "parallel.zero_stage",
            "shards each parameter across the ranks, but 4-bit matrices (lora.load_in_4bit) must be "
            "complete on each rank. Set zero_stage: 2, or set load_in_4bit: false to shard the frozen "
            "weights.",
            "ZeRO 3 shards parameters, but 4-bit matrices (lora.load_in_4bit) must be complete on each rank",
        )
    if pipeline > 1:
        yield Broken(
            "parallel.pipeline_parallel_size",
            "splits the model into pipeline stages, which do not support 4-bit matrices "
            "(lora.load_in_4bit). Set pipeline_parallel_size: 1, or set load_in_4bit: false.",
            "pipeline stages do not support 4-bit matrices (lora.load_in_4bit)",
        )


def four_bit_blocks(lora: LoraConfig, shape: Shape, tensor: int) -> Iterator[Broken]:
    """Require that tensor parallelism does not split a block of 64 4-bit numbers.

    Then all layouts produce the same bits.
    """
    if not lora.load_in_4bit or tensor == 1:
        return
    if lora.bnb_4bit_use_double_quant:
        yield Broken(
            "lora.bnb_4bit_use_double_quant",
            f"needs the mean over a complete matrix, but tensor_parallel_size({tensor}) shards the matrices. "
            "Set bnb_4bit_use_double_quant: false, which needs 0.373 bits more per weight, or set "
            "tensor_parallel_size: 1.",
            f"tensor_parallel_size({tensor}) shards matrices, but bnb_4bit_use_double_quant needs the mean "
            "over a complete matrix",
        )
    inputs = {
        "hidden_size": (shape.hidden_size, 1),
        "num_attention_heads * kv_channels": (shape.query_width, tensor),
        "ffn_hidden_size": (shape.ffn_hidden_size, tensor),
    }
    for name, (width, ranks) in inputs.items():
        if width % (unit := BLOCK_ELEMENTS * ranks):
            yield Broken(
                "parallel.tensor_parallel_size",
                f"would split blocks of {BLOCK_ELEMENTS} 4-bit numbers (lora.load_in_4bit), because "
                f"{name}({width}) is not a multiple of {unit}. Set tensor_parallel_size: 1.",
                f"{name}({width}) is not a multiple of {unit}, so tensor_parallel_size({tensor}) would split "
                f"blocks of {BLOCK_ELEMENTS} 4-bit numbers (lora.load_in_4bit)",
            )


def preference_answers(ulysses: int, context: int) -> Iterator[Broken]:
    """Require, with dpo, that no sequence is split between ranks.

    The log-probability of an answer is a sum over its tokens, and is not summed across ranks.
    """
    for name, size in (("ds_sequence_parallel_size", ulysses), ("context_parallel_size", context)):
        if size == 1:
            continue
        yield Broken(
            f"parallel.{name}",
            "must be 1 with dpo, because the log-probability of an answer is not summed across ranks that "
            "share its sequence. Use tensor_parallel_size or pipeline_parallel_size instead.",
            f"{name}({size}) splits answers across ranks, but dpo needs each answer on one rank",
        )


def prescaled_gradients(zero_stage: int, data_type: str) -> Iterator[Broken]:
    """Require that prescale_gradients is off with ZeRO, which divides gradients after summing them.

    `data_type` is communication_data_type.
    """
    if zero_stage:
        yield Broken(
            "parallel.prescale_gradients",
            f"applies only to zero_stage: 0, but zero_stage is {zero_stage}. Set prescale_gradients: false; "
            f"gradients are summed in communication_data_type({data_type}) either way.",
            f"prescale_gradients cannot be combined with ZeRO {zero_stage}",
        )


def autotuned_ranks(section: KubernetesConfig, sizes: Mapping[str, int]) -> Iterator[Broken]:
    """Require that a run with DeepSpeed's autotuner uses only data parallelism.

    The autotuner counts every rank as a data-parallel rank. `sizes` are the parallel sizes by their field
    names in the section `parallel`.
    """
    if section.autotune == "none" or section.workload != "DeepSpeedJob":
        return
    for field in (f"{kind}_parallel_size" for kind in MODEL_KINDS):
        if (size := sizes[field]) > 1:
            yield Broken(
                "backend.kubernetes.autotune",
                f"needs parallel.{field}: 1, but the size is {size}; DeepSpeed's autotuner counts every rank "
                "as a data-parallel rank. Set autotune: none, and run `nbtrain search` instead, which tries "
                "layouts of all kinds.",
                f"backend.kubernetes.autotune({section.autotune}) needs {field}: 1, but the size is {size}",
            )


def read_ahead(
    section: KubernetesConfig, workers: int, micro: int, length: int, ranks: int
) -> Iterator[Broken]:
    """Require that shared_memory_bytes is large enough for the batches that data workers prefetch.

    A pod has `ranks` ranks with `workers` data workers each.
    """
    size, needed = section.shared_memory_bytes, ranks * read_ahead_bytes(workers, micro, length)
    if size is not None and size < needed:
        readers = f"the data workers (data.num_workers = {workers}) of the {counted(ranks, 'rank')} of a pod"
        yield Broken(
            "backend.kubernetes.shared_memory_bytes",
            f"must be at least {needed}, because {readers} prefetch {needed} bytes. Raise or remove "
            "shared_memory_bytes, or set data.num_workers: 0.",
            f"with micro_batch_size({micro}), {readers} prefetch {needed} bytes, more than "
            f"backend.kubernetes.shared_memory_bytes({size})",
        )
