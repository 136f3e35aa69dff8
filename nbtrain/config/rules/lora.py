"""Rules about adapters (the section `lora`): one function for each rule."""

from collections.abc import Callable

from nbtrain.config.findings import mistake
from nbtrain.config.rules.limits import adapter_groups, four_bit_blocks, four_bit_stages, problems_of
from nbtrain.config.rules.wording import Problems, broken, value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.lora_section import LoraConfig


def adapters_have_weights(config: RunConfig) -> Problems:
    """Check that a run with lora sets init_from.

    The base weights are frozen, so random weights would stay random.
    """
    if config.lora is not None and config.init_from is None:
        yield mistake(
            config,
            "lora",
            "lora\n  trains adapters for frozen weights, but init_from, which names these weights, is null.",
            "Set init_from to a run, or to a folder with a Hugging Face model.",
        )


def adapters_are_stepped_by_adamw(config: RunConfig) -> Problems:
    """Check that adapters are not trained with Muon, which orthogonalizes whole matrices."""
    if config.lora is not None and config.optimizer.type != "AdamW":
        parts = "an adapter consists of the two factors of a matrix"
        if config.lora.kind == "ia3":
            parts = "IA3 adapters are vectors"
        yield broken(
            config,
            "optimizer.type",
            f"orthogonalizes whole matrices, but {parts}.",
            "Set optimizer.type: AdamW.",
        )


def adapters_are_named_once(config: RunConfig) -> Problems:
    """Check that lora.targets lists each matrix once."""
    if config.lora is not None and len(set(config.lora.targets)) < len(config.lora.targets):
        yield broken(
            config,
            "lora.targets",
            "lists a matrix more than once.",
            "List each matrix once.",
        )


def trained_tokens_are_there(config: RunConfig) -> Problems:
    """Check that every token in trainable_token_indices is in the vocabulary and listed once."""
    ids = config.lora.trainable_token_indices if config.lora is not None else None
    if not ids:
        return
    key = "lora.trainable_token_indices"
    size, most = config.tokenizer.vocab_size, max(ids)
    if len(set(ids)) < len(ids):
        again = next(token for number, token in enumerate(ids) if token in ids[:number])
        yield mistake(
            config,
            key,
            f"{key}\n  lists the token id {again:,} more than once.",
            "List each id once.",
        )
    if most >= size:
        yield mistake(
            config,
            key,
            f"{key}\n"
            f"  contains the token id {most:,}, but with tokenizer.vocab_size({size:,}) the ids are 0 to "
            f"{size - 1:,}.",
            f"Remove the id, or set tokenizer.vocab_size: {most + 1}.",
        )


def adapters_can_be_cut(config: RunConfig) -> Problems:
    """Check that tensor-parallel ranks get complete query groups if query_key_value has adapters."""
    if config.lora is not None:
        tensor = config.parallel.tensor_parallel_size
        yield from problems_of(config, adapter_groups(config.lora, config.shape, tensor))


def adapters_attend_at_once(config: RunConfig) -> Problems:
    """Check that adapters are not combined with FPDT, whose kernel does not apply them."""
    if config.lora is not None and config.parallel.fpdt_chunk_tokens:
        yield broken(
            config,
            "parallel.fpdt_chunk_tokens",
            "turns FPDT on, whose kernel applies the attention matrices without their adapters (lora).",
            "Set fpdt_chunk_tokens: 0.",
        )


def ia3_has_no_matrices(config: RunConfig) -> Problems:
    """Check that a run with IA3 adapters sets no fields that apply only to LoRA."""
    if config.lora is None or config.lora.kind != "ia3":
        return
    for name, field in LoraConfig.model_fields.items():
        if name not in ("kind", "init_from") and getattr(config.lora, name) != field.default:
            yield broken(
                config,
                f"lora.{name}",
                "applies only to lora.kind: lora, but lora.kind is ia3. IA3 trains vectors that scale keys, "
                "values and the MLP.",
                f"Remove {name}.",
            )


def four_bits_are_asked_for(config: RunConfig) -> Problems:
    """Check that fields for 4-bit matrices are set only with load_in_4bit."""
    if config.lora is None or config.lora.load_in_4bit or config.lora.kind == "ia3":
        return
    for name in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant"):
        if getattr(config.lora, name) != LoraConfig.model_fields[name].default:
            yield broken(
                config,
                f"lora.{name}",
                "applies only to load_in_4bit: true, but load_in_4bit is false.",
                f"Set load_in_4bit: true, or remove {name}.",
            )


def four_bits_are_whole(config: RunConfig) -> Problems:
    """Check that 4-bit matrices are not combined with ZeRO 3, a pipeline, fp8 or compile.

    ZeRO 3 and pipelines move parameters between ranks; fp8 and compile need matrices of 16 or 32 bits.
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
                "needs matrices of 16 or 32 bits, but lora.load_in_4bit stores them in 4 bits.",
                f"Set {key}: false, or set lora.load_in_4bit: false.",
            )


def four_bits_are_cut_between_blocks(config: RunConfig) -> Problems:
    """Check that tensor parallelism does not split a block of 64 4-bit numbers.

    Then the bits are the same in every layout.
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
