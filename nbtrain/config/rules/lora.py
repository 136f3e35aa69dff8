"""Rules of adapters (the section `lora`): one function for each rule."""

from collections.abc import Callable

from nbtrain.config.findings import mistake
from nbtrain.config.rules.limits import adapter_groups, four_bit_blocks, four_bit_stages, problems_of
from nbtrain.config.rules.wording import Problems, broken, value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.lora_section import LoraConfig


def adapters_have_weights(config: RunConfig) -> Problems:
    """lora needs init_from: the weights next to adapters are frozen, so random weights would stay random."""
    if config.lora is not None and config.init_from is None:
        yield mistake(
            config,
            "lora",
            "lora\n  trains adapters next to frozen weights, but init_from names none.",
            "Set init_from to a run or to a folder of Hugging Face.",
        )


def adapters_are_stepped_by_adamw(config: RunConfig) -> Problems:
    """Adapters are not trained with Muon, which orthogonalizes whole matrices."""
    if config.lora is not None and config.optimizer.type != "AdamW":
        parts = "the two matrices of an adapter are only factors of one"
        if config.lora.kind == "ia3":
            parts = "the adapters of IA3 are vectors"
        yield broken(
            config,
            "optimizer.type",
            f"orthogonalizes whole matrices, but {parts}.",
            "Set optimizer.type: AdamW.",
        )


def adapters_are_named_once(config: RunConfig) -> Problems:
    """A matrix has at most one adapter."""
    if config.lora is not None and len(set(config.lora.targets)) < len(config.lora.targets):
        yield broken(
            config,
            "lora.targets",
            "names a matrix twice.",
            "Name each once.",
        )


def trained_tokens_are_there(config: RunConfig) -> Problems:
    """Every token whose row is trained is in the vocabulary."""
    ids = config.lora.trainable_token_indices if config.lora is not None else None
    if not ids:
        return
    key = "lora.trainable_token_indices"
    size, most = config.tokenizer.vocab_size, max(ids)
    if len(set(ids)) < len(ids):
        again = next(one for number, one in enumerate(ids) if one in ids[:number])
        yield mistake(
            config,
            key,
            f"{key}\n  names {again:,} twice.",
            "Name each id once.",
        )
    if most >= size:
        yield mistake(
            config,
            key,
            f"{key}\n  names {most:,}, and tokenizer.vocab_size({size:,}) has the ids 0 to {size - 1:,}.",
            f"Remove it, or set tokenizer.vocab_size: {most + 1}.",
        )


def adapters_can_be_cut(config: RunConfig) -> Problems:
    """The rows of queries, keys and values on each rank are complete groups."""
    if config.lora is not None:
        tensor = config.parallel.tensor_parallel_size
        yield from problems_of(config, adapter_groups(config.lora, config.shape, tensor))


def adapters_attend_at_once(config: RunConfig) -> Problems:
    """Adapters are not combined with FPDT, which multiplies by attention's matrices itself, without
    adapters.
    """
    if config.lora is not None and config.parallel.fpdt_chunk_tokens:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            "multiplies by attention's matrices itself, without their adapters (lora).",
            "Set fpdt_chunk_tokens: 0.",
        )


def ia3_has_no_matrices(config: RunConfig) -> Problems:
    """Fields that only LoRA reads are not set for IA3."""
    if config.lora is None or config.lora.kind != "ia3":
        return
    for name, field in LoraConfig.model_fields.items():
        if name not in ("kind", "init_from") and getattr(config.lora, name) != field.default:
            yield broken(
                config,
                f"lora.{name}",
                "is for lora.kind: lora, but kind is ia3, whose vectors multiply keys, values and the MLP.",
                "Remove it.",
            )


def four_bits_are_asked_for(config: RunConfig) -> Problems:
    """Fields for matrices in 4 bits have no effect without load_in_4bit."""
    if config.lora is None or config.lora.load_in_4bit or config.lora.kind == "ia3":
        return
    for name in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant"):
        if getattr(config.lora, name) != LoraConfig.model_fields[name].default:
            yield broken(
                config,
                f"lora.{name}",
                "is for load_in_4bit: true, but load_in_4bit is false.",
                "Set load_in_4bit: true, or remove it.",
            )


def four_bits_are_whole(config: RunConfig) -> Problems:
    """Matrices in 4 bits are not combined with ZeRO 3 and pipelines, which move parameters, nor with fp8 and
    compile, which read 16 bits.
    """
    if config.lora is None or not config.lora.load_in_4bit:
        return
    parallel = config.parallel
    limits = four_bit_stages(config.lora, parallel.pipeline_parallel_size, parallel.zero_stage)
    yield from problems_of(config, limits)
    for key in ("precision.fp8", "model.compile"):
        if value_of(config, key):
            yield broken(
                config,
                key,
                "reads matrices of 16 or 32 bits, and lora.load_in_4bit holds 4.",
                f"Set {key.rpartition('.')[2]}: false, or load_in_4bit: false.",
            )


def four_bits_are_cut_between_blocks(config: RunConfig) -> Problems:
    """Tensor-parallel ranks do not split a block of 64 numbers, so that the bits are the same in every
    layout.
    """
    if config.lora is not None:
        tensor = config.parallel.tensor_parallel_size
        yield from problems_of(config, four_bit_blocks(config.lora, config.shape, tensor))


LORA_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    adapters_have_weights,
    adapters_are_stepped_by_adamw,
    adapters_are_named_once,
    trained_tokens_are_there,
    adapters_can_be_cut,
    adapters_attend_at_once,
    ia3_has_no_matrices,
    four_bits_are_asked_for,
    four_bits_are_whole,
    four_bits_are_cut_between_blocks,
)
