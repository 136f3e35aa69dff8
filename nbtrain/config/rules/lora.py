"""Rules of adapters (the section `lora`): one function for each rule."""

from collections.abc import Callable

from nbtrain.config.lora_section import LoraConfig
from nbtrain.config.rules.wording import Problems, found
from nbtrain.config.schema import RunConfig


def adapters_have_weights(config: RunConfig) -> Problems:
    """The weights beside adapters are frozen, so that random ones would stay random."""
    if config.lora is not None and config.init_from is None:
        yield (
            f"{config.where('lora')}: lora\n  trains adapters beside frozen weights, and init_from names "
            "none. Set init_from to a run or to a folder of Hugging Face."
        )


def adapters_are_stepped_by_adamw(config: RunConfig) -> Problems:
    """Muon orthogonalizes whole matrices, which the two of an adapter are not."""
    if config.lora is not None and config.optimizer.type != "AdamW":
        yield (
            f"{found(config, 'optimizer.type')}\n  steps whole matrices, and with lora only adapters are "
            "trained. Set optimizer.type: AdamW."
        )


def adapters_are_named_once(config: RunConfig) -> Problems:
    """A matrix has one adapter."""
    if config.lora is not None and len(set(config.lora.targets)) < len(config.lora.targets):
        yield f"{found(config, 'lora.targets')}\n  names a matrix twice. Name each once."


def adapters_can_be_cut(config: RunConfig) -> Problems:
    """The rows of queries, keys and values that a rank holds belong to whole groups."""
    groups, tensor = config.model.resolved_num_query_groups, config.parallel.tensor_parallel_size
    if config.lora is not None and "query_key_value" in config.lora.targets and groups % tensor:
        yield (
            f"{found(config, 'parallel.tensor_parallel_size')}\n  with lora on query_key_value must divide "
            f"model.num_query_groups({groups}). Lower it, or leave query_key_value out of lora.targets."
        )


def adapters_attend_at_once(config: RunConfig) -> Problems:
    """FPDT multiplies by attention's matrices itself."""
    if config.lora is not None and config.parallel.fpdt_chunk_tokens:
        yield (
            f"{found(config, 'parallel.fpdt_chunk_tokens')}\n  multiplies by attention's matrices itself, "
            "without their adapters (lora). Set fpdt_chunk_tokens: 0."
        )


def ia3_has_no_matrices(config: RunConfig) -> Problems:
    """What only LoRA reads is not set for IA3."""
    if config.lora is None or config.lora.kind != "ia3":
        return
    for name, field in LoraConfig.model_fields.items():
        if name not in ("kind", "init_from") and getattr(config.lora, name) != field.default:
            yield (
                f"{found(config, f'lora.{name}')}\n  is of lora.kind: lora, and kind is ia3, whose vectors "
                "stand at keys, values and the MLP. Leave it out."
            )


LORA_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    adapters_have_weights,
    adapters_are_stepped_by_adamw,
    adapters_are_named_once,
    adapters_can_be_cut,
    adapters_attend_at_once,
    ia3_has_no_matrices,
)
