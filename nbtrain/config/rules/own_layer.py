"""Rules about runs whose `code` file defines layer(): settings that cannot be combined with custom blocks."""

from collections.abc import Callable

from nbtrain.config.findings import mistake
from nbtrain.config.own_blocks import has_own_layer
from nbtrain.config.rules.wording import Problems, broken, value_of
from nbtrain.config.schema import RunConfig

# {key: (what the setting does to nbtrain's own blocks, the value that can be combined with layer())}
APART = {
    "lora": ("adds adapters to the matrices of nbtrain's own blocks", "null"),
    "precision.fp8": ("is implemented only in the linear layers of nbtrain's own blocks", "false"),
    "model.compile": ("cannot trace the checks on the output of custom blocks", "false"),
    "parallel.fpdt_chunk_tokens": ("processes the attention and MLP of nbtrain's own blocks in chunks", "0"),
}


def own_layer_goes_alone(config: RunConfig) -> Problems:
    """Check that a run with layer() sets nothing that changes the inside of nbtrain's own blocks."""
    if not has_own_layer(config):
        return
    for key, (why, value) in APART.items():
        if (found := value_of(config, key)) is not None and found:
            rule = f"{why}, but the blocks of this run come from layer() in {config.code}."
            fix = f"Set {key.rpartition('.')[2]}: {value}, or remove layer() from the file."
            if key == "lora":
                yield mistake(config, key, f"lora\n  {rule}", fix)
            else:
                yield broken(config, key, rule, fix)


OWN_LAYER_RULES: tuple[Callable[[RunConfig], Problems], ...] = (own_layer_goes_alone,)
