"""Rules of a run whose `code` replaces the blocks (layer()): the settings that it cannot have, and why."""

from collections.abc import Callable

from nbtrain.config.findings import mistake
from nbtrain.config.own_blocks import has_own_layer
from nbtrain.config.rules.wording import Problems, broken, value_of
from nbtrain.config.schema import RunConfig

# key: (the reason, the value that can be combined with layer())
APART = {
    "lora": ("adds adapters to nbtrain's own matrices by their names", "null"),
    "precision.fp8": ("multiplies in blocks of 16 numbers, and is built into nbtrain's own layers", "false"),
    "model.compile": ("cannot follow the checks of what a block returns", "false"),
    "parallel.fpdt_chunk_tokens": ("cuts nbtrain's own attention and MLP into chunks of tokens", "0"),
}


def own_layer_goes_alone(config: RunConfig) -> Problems:
    """Blocks from layer() are not combined with settings that change the inside of nbtrain's own blocks."""
    if not has_own_layer(config):
        return
    for key, (why, value) in APART.items():
        if (found := value_of(config, key)) is not None and found:
            rule = f"{why}, and the blocks of this run come from layer() in {config.code}."
            fix = f"Set {key.rpartition('.')[2]}: {value}, or remove layer() from the file."
            if key == "lora":
                yield mistake(config, key, f"lora\n  {rule}", fix)
            else:
                yield broken(config, key, rule, fix)


OWN_LAYER_RULES: tuple[Callable[[RunConfig], Problems], ...] = (own_layer_goes_alone,)
