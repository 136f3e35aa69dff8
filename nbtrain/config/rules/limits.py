"""Limits of a layout on plain numbers: which sizes a model, its batch and its options allow.

A rule of a run YAML and the planner's search ask the same functions, so that a layout is legal in both or in
neither. Each function yields a Broken for every limit that its numbers break; nothing is yielded for numbers
that agree. No RunConfig is made: a search checks thousands of layouts.
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

# cuBLAS wants every side of an FP8 product to be a multiple of 16.
FP8_MULTIPLE = 16


class Broken(NamedTuple):
    """A limit that a layout breaks, in two wordings: for the check of a run, and for a layout search."""

    key: str
    """Key of the setting to change, as in a run YAML."""
    rule: str
    """The limit with its numbers and the fix, after the setting's place and value."""
    clause: str
    """The reason against a layout, as a clause without place and fix."""
    value: str = ""
    """Name and value that the rule is about, if they differ from the setting's own."""


def problems_of(config: RunConfig, broken: Iterable[Broken]) -> Problems:
    """Yield a finding about each broken limit of a run."""
    for limit in broken:
        yield mistake(config, limit.key, f"{limit.value or setting_text(config, limit.key)}\n  {limit.rule}")


def no_multiple(config: RunConfig, key: str, unit: int, words: str) -> Problems:
    """Yield the finding about a setting that is not a multiple of `unit`; `words` names `unit`."""
    return problems_of(config, is_multiple(key, value_of(config, key), unit, words))


def no_divisor(config: RunConfig, key: str, whole: int, words: str) -> Problems:
    """Yield the finding about a setting that does not divide `whole`; `words` names `whole`."""
    return problems_of(config, divides(key, value_of(config, key), whole, words))


def divides(key: str, divisor: int, whole: int, words: str) -> Iterator[Broken]:
    """Yield a Broken if the setting `key` does not divide `whole`; `words` names `whole`."""
    if whole % divisor:
        nearest = join(nearest_divisors(divisor, whole))
        yield Broken(
            key, f"must divide {words}; nearest: {nearest}.", f"{_of(key, divisor)} does not divide {words}"
        )


def is_multiple(key: str, value: int, unit: int, words: str, name: str = "") -> Iterator[Broken]:
    """Yield a Broken if a value is not a multiple of `unit`; `words` names `unit`.

    `name`: name of the value, if it is not the setting's own.
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
    """All ranks have the same number of heads: tensor parallelism shards them first, then Ulysses."""
    count = shape.num_attention_heads
    words = f"num_attention_heads({count})"
    yield from divides("parallel.tensor_parallel_size", tensor, count, words)
    if count % tensor == 0:
        if tensor > 1:
            words += f" / tensor_parallel_size({tensor}) = {count // tensor}"
        yield from divides("parallel.ds_sequence_parallel_size", ulysses, count // tensor, words)


def mlp_width(shape: Shape, tensor: int, key: str = "model.ffn_hidden_size") -> Iterator[Broken]:
    """All tensor-parallel ranks have equal parts of the MLP; `key` is the field that sets the MLP's width."""
    words = f"tensor_parallel_size({tensor})"
    yield from is_multiple(key, shape.ffn_hidden_size, tensor, words, "the MLP's width")


def query_groups(shape: Shape, tensor: int) -> Iterator[Broken]:
    """Tensor-parallel ranks have complete groups of queries, or equal parts of one group."""
    key, count, groups = "parallel.tensor_parallel_size", shape.num_attention_heads, shape.num_query_groups
    if count % groups or count % tensor:
        return  # Limits of their own.
    rows = shape.query_width + 2 * shape.kv_width
    if groups % tensor and tensor % groups:
        sizes = [size for size in range(1, count + 1) if count % size == 0]
        legal = [size for size in sizes if groups % size == 0 or size % groups == 0]
        below = [size for size in legal if size < tensor][-1:]
        above = [size for size in legal if size > tensor][:1]
        yield Broken(
            key,
            f"must be a multiple or a divisor of num_query_groups({groups}): each rank has whole groups, or "
            f"an equal part of one; nearest: {join([*below, *above])}.",
            f"tensor_parallel_size({tensor}) must divide num_query_groups({groups}) or be a multiple of it",
        )
    elif rows % tensor:
        unit = tensor // math.gcd(tensor, count + 2 * groups)
        yield Broken(
            key,
            f"must divide the rows of query, key and value, (num_attention_heads({count}) + 2 * "
            f"num_query_groups({groups})) * head size({shape.kv_channels}) = {rows}: with fewer groups than "
            "ranks they are split evenly. Set another tensor_parallel_size, or a multiple of "
            f"{unit} as kv_channels.",
            f"tensor_parallel_size({tensor}) does not divide the {rows} rows of query, key and value",
        )


def stages(shape: Shape, pipeline: int) -> Iterator[Broken]:
    """Each pipeline stage holds at least one layer."""
    layers = shape.num_layers
    if layers < pipeline:
        yield Broken(
            "parallel.pipeline_parallel_size",
            f"must be at most num_layers({layers}): each stage holds at least one layer.",
            f"pipeline_parallel_size({pipeline}) is more than num_layers({layers})",
        )


def recomputed_layers(interval: int, most: int, pipeline: int) -> Iterator[Broken]:
    """A group of recomputed layers is not larger than a rank's layers; `most` is the number of layers of the
    largest stage.
    """
    if interval > most:
        where = f"the largest of {pipeline} pipeline stages" if pipeline > 1 else "the model"
        yield Broken(
            "parallel.activation_checkpointing.interval_layers",
            f"must be at most {most}, the layers of {where}.",
            f"interval_layers({interval}) is more than the {most} layers of {where}",
        )


def sequence(shape: Shape, ulysses: int, context: int, chunk: int) -> Iterator[Broken]:
    """Ranks that share a sequence have equal parts of it: context-parallel ranks two chunks each; with FPDT
    (`chunk` > 0), Ulysses ranks equal parts of each chunk.
    """
    words, length = f"ds_sequence_parallel_size({ulysses})", shape.seq_length
    yield from is_multiple("model.seq_length", length, ulysses, words)
    if context > 1:
        chunks = f"2 * context_parallel_size({context}) = {2 * context}, because each rank has two chunks"
        yield from is_multiple("model.seq_length", length, 2 * context, chunks)
    if chunk:
        yield from is_multiple("model.seq_length", length, chunk, f"fpdt_chunk_tokens({chunk})")
    yield from is_multiple("parallel.fpdt_chunk_tokens", chunk, ulysses, f"{words}: ranks share each chunk")


def sharded_sequence(shape: Shape, tensor: int, ulysses: int, context: int) -> Iterator[Broken]:
    """With sequence_parallel, tensor-parallel ranks have equal parts of a sequence, or of the part of a rank
    that shares it.
    """
    words, unit = f"tensor_parallel_size({tensor})", tensor * ulysses * context
    if ulysses > 1:
        words += f" * ds_sequence_parallel_size({ulysses})"
    if context > 1:
        words += f" * context_parallel_size({context})"
    words += f"{f' = {unit}' if unit > tensor else ''} with sequence_parallel"
    yield from is_multiple("model.seq_length", shape.seq_length, unit, words)


def needs_without_mask(setting: str, problem: str) -> str:
    """Explain why flash attention cannot serve a setting: `problem` is the requirement of its kernel with
    lengths, which replace a mask, and the run's value.
    """
    return f"flash attention takes no mask; to do without a mask, {setting} needs {problem}"


def flash_parts(context: int, problem: str | None) -> Iterator[Broken]:
    """Context-parallel ranks attend from the later part of a sequence, for which the flash kernel on a GPU
    needs lengths; `problem` is why it cannot be called with them (attention_kernels.lengths_problem).
    """
    if context > 1 and problem:
        reason = needs_without_mask(f"context_parallel_size({context})", problem)
        yield Broken(
            "model.attention_backend",
            f"cannot serve this run: {reason}.\n  Set attention_backend: auto.",
            f"attention_backend(flash): {reason}",
        )


def hpz_partition(size: int, data_axis_size: int) -> Iterator[Broken]:
    """The second copy of ZeRO++'s weights (hpZ) is sharded across equal groups of `size` ranks."""
    words = f"data_parallel_size * ds_sequence_parallel_size * context_parallel_size = {data_axis_size}"
    yield from divides("parallel.zero_hpz_partition_size", size, data_axis_size, words)


def fp8_sides(shape: Shape, tensor: int) -> Iterator[Broken]:
    """Each side of a matrix that FP8 multiplies is a multiple of 16 on every tensor-parallel rank."""
    sides = {
        "model.hidden_size": shape.hidden_size,
        "model.ffn_hidden_size": shape.ffn_hidden_size,
        "model.kv_channels": shape.query_width,
        "model.num_query_groups": shape.query_width + 2 * shape.kv_width,
    }
    # Sides that follow from hidden_size and num_attention_heads are not reported a second time.
    if shape.query_width == shape.hidden_size:
        del sides["model.kv_channels"]
    if shape.num_query_groups == shape.num_attention_heads:
        del sides["model.num_query_groups"]
    for key, width in sides.items():
        if (side := width // tensor) % FP8_MULTIPLE:
            yield Broken(
                key,
                f"gives matrices a side of {side} on a rank of tensor_parallel_size({tensor}), but FP8 needs "
                f"multiples of {FP8_MULTIPLE}. Set fp8: false, or another size.",
                f"FP8 needs sides that are multiples of {FP8_MULTIPLE}, but {key.rpartition('.')[2]} gives "
                f"{side} on each of {tensor} tensor-parallel ranks",
            )


def fp8_tokens(
    micro: int, length: int, ulysses: int, context: int, name: str = "seq_length"
) -> Iterator[Broken]:
    """The tokens that one rank multiplies at once are a multiple of 16; `name` is the field of `length`."""
    tokens = micro * length // (ulysses * context)
    if tokens % FP8_MULTIPLE:
        sharing = f"context_parallel_size({context})"
        if context == 1:
            sharing = f"ds_sequence_parallel_size({ulysses})"
        product = f"micro_batch_size({micro}) * {name}({length}) / {sharing} = {tokens}"
        yield Broken(
            "precision.fp8",
            f"needs a multiple of {FP8_MULTIPLE} tokens, but {product}. Set fp8: false, or another {name}.",
            f"FP8 needs a multiple of {FP8_MULTIPLE} tokens, but {product}",
        )


def adapter_groups(lora: LoraConfig, shape: Shape, tensor: int) -> Iterator[Broken]:
    """With adapters on query_key_value, the rows of each rank are complete groups."""
    groups = shape.num_query_groups
    if "query_key_value" in lora.targets and groups % tensor:
        yield Broken(
            "parallel.tensor_parallel_size",
            f"with lora on query_key_value must divide model.num_query_groups({groups}). Lower it, or remove "
            "query_key_value from lora.targets.",
            f"tensor_parallel_size({tensor}) does not divide num_query_groups({groups}), as lora on "
            "query_key_value requires",
        )


def four_bit_stages(lora: LoraConfig, pipeline: int, zero_stage: int) -> Iterator[Broken]:
    """Matrices in 4 bits are complete on each rank, because neither ZeRO 3 nor a pipeline supports them."""
    if not lora.load_in_4bit:
        return
    if zero_stage == 3:
        yield Broken(
            "parallel.zero_stage",
            "shards each parameter across the ranks, and matrices in 4 bits (lora.load_in_4bit) are complete "
            "on each rank. Set zero_stage: 2, or load_in_4bit: false to shard the frozen weights.",
            "ZeRO 3 shards parameters, and matrices in 4 bits (lora.load_in_4bit) are complete on each rank",
        )
    if pipeline > 1:
        yield Broken(
            "parallel.pipeline_parallel_size",
            "splits the model into stages, which do not support matrices in 4 bits (lora.load_in_4bit). Set "
            "pipeline_parallel_size: 1, or load_in_4bit: false.",
            "matrices in 4 bits (lora.load_in_4bit) are not supported in pipeline stages",
        )


def four_bit_blocks(lora: LoraConfig, shape: Shape, tensor: int) -> Iterator[Broken]:
    """Tensor parallelism never splits a block of 64 numbers in 4 bits, so that all layouts agree bit for
    bit.
    """
    if not lora.load_in_4bit or tensor == 1:
        return
    if lora.bnb_4bit_use_double_quant:
        yield Broken(
            "lora.bnb_4bit_use_double_quant",
            f"needs one mean over a complete matrix, which tensor_parallel_size({tensor}) shards. Set "
            "bnb_4bit_use_double_quant: false, which needs 0.373 bits more for each weight, or "
            "tensor_parallel_size: 1.",
            f"tensor_parallel_size({tensor}) shards a matrix, and bnb_4bit_use_double_quant needs its mean",
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
                f"with lora.load_in_4bit shards matrices between blocks of {BLOCK_ELEMENTS} numbers, and "
                f"{name}({width}) is not a multiple of {unit}. Set tensor_parallel_size: 1.",
                f"{name}({width}) is not a multiple of {unit}, so that tensor_parallel_size({tensor}) splits "
                f"blocks of {BLOCK_ELEMENTS} numbers in 4 bits",
            )


def preference_answers(ulysses: int, context: int) -> Iterator[Broken]:
    """Ranks do not share answers, because the log-probability of an answer (dpo) is a sum over its tokens."""
    for name, size in (("ds_sequence_parallel_size", ulysses), ("context_parallel_size", context)):
        if size == 1:
            continue
        yield Broken(
            f"parallel.{name}",
            "with dpo must be 1: the log-probability of an answer is not summed over ranks that share its "
            "sequence. Use tensor_parallel_size or pipeline_parallel_size.",
            f"{name}({size}) splits answers, and dpo sums over each answer",
        )


def prescaled_gradients(zero_stage: int, data_type: str) -> Iterator[Broken]:
    """prescale_gradients is off with ZeRO, which divides gradients after their sum; `data_type` is
    communication_data_type.
    """
    if zero_stage:
        yield Broken(
            "parallel.prescale_gradients",
            f"is for zero_stage: 0, but zero_stage is {zero_stage}. Set prescale_gradients: false; gradients "
            f"are summed in communication_data_type({data_type}) either way.",
            f"prescale_gradients cannot be combined with ZeRO {zero_stage}",
        )


def autotuned_ranks(section: KubernetesConfig, sizes: Mapping[str, int]) -> Iterator[Broken]:
    """DeepSpeed's autotuner, which counts every rank as a data-parallel one, has no other ranks; `sizes` are
    the sizes of parallelism by their fields of the section `parallel`.
    """
    if section.autotune == "none" or section.workload != "DeepSpeedJob":
        return
    for field in (f"{kind}_parallel_size" for kind in MODEL_KINDS):
        if (size := sizes[field]) > 1:
            yield Broken(
                "backend.kubernetes.autotune",
                f"needs parallel.{field}(1), not {size}: DeepSpeed's autotuner counts every rank as a "
                "data-parallel one. Set it to none; `nbtrain search` then tries layouts of all kinds.",
                f"backend.kubernetes.autotune({section.autotune}) needs {field}(1), not {size}",
            )


def read_ahead(
    section: KubernetesConfig, workers: int, micro: int, length: int, ranks: int
) -> Iterator[Broken]:
    """shared_memory_bytes is large enough for the batches that the data workers of a pod's ranks read ahead;
    `workers` is the number of each rank.
    """
    size, needed = section.shared_memory_bytes, ranks * read_ahead_bytes(workers, micro, length)
    if size is not None and size < needed:
        readers = f"data.num_workers({workers}) for each of {counted(ranks, 'rank')} of a pod"
        yield Broken(
            "backend.kubernetes.shared_memory_bytes",
            f"must be at least {needed}: {readers} read that many bytes ahead. Set data.num_workers: 0, "
            "raise it, or remove it.",
            f"with micro_batch_size({micro}), {readers} read {needed} bytes ahead, more than "
            f"backend.kubernetes.shared_memory_bytes({size})",
        )
