"""Rules of attention's fields: groups of queries, windows, layers without rope, caps of scores."""

from collections.abc import Callable

from nbtrain.config.rules import limits
from nbtrain.config.rules.limits import no_divisor, problems_of
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig

# Fields that FPDT's kernel, which is DeepSpeed's, does not support: {field: value that turns it off}.
PLAIN_IN_FPDT = {
    "num_query_groups": None,
    "kv_channels": None,
    "qk_layernorm": False,
    "window_size": None,
    "attn_logit_softcapping": None,
}


def groups_divide(config: RunConfig) -> Problems:
    """All groups have the same number of queries. Each tensor rank has complete groups, or an equal part of
    one group.
    """
    heads = config.model.num_attention_heads
    if config.model.num_query_groups is None:
        return
    yield from no_divisor(config, "model.num_query_groups", heads, f"num_attention_heads({heads})")
    broken = limits.query_groups(config.shape, config.parallel.tensor_parallel_size)
    yield from problems_of(config, broken)


def patterns_fit_the_layers(config: RunConfig) -> Problems:
    """A pattern has one entry for each layer, and is set only together with the setting that it applies
    to.
    """
    model = config.model
    for key, of in (("window_attn_skip_freq", "window_size"), ("no_rope_freq", None)):
        pattern = getattr(model, key)
        if of is not None and pattern is not None and getattr(model, of) is None:
            yield broken(
                config,
                f"model.{key}",
                f"is read with {of} only.",
                f"Set {of}, or remove it.",
            )
        if isinstance(pattern, list) and len(pattern) != model.num_layers:
            yield broken(
                config,
                f"model.{key}",
                f"has {len(pattern)} entries, but num_layers is "
                f"{model.num_layers}: a list has one for each layer.",
            )
    if model.window_attn_skip_freq == 1:
        yield broken(
            config,
            "model.window_attn_skip_freq",
            "gives no layer the window.",
            "Set window_size: null, or a number from 2 on.",
        )


def capped_scores_have_their_kernel(config: RunConfig) -> Problems:
    """Capped scores need nbtrain's own kernel, which has no dropout."""
    model, key = config.model, "model.attn_logit_softcapping"
    if model.attn_logit_softcapping is None:
        return
    if model.attention_dropout:
        yield broken(
            config,
            key,
            f"needs attention_dropout: 0, but it is {model.attention_dropout:g}: the "
            "kernel that caps scores has no dropout.",
        )
    if model.attention_backend != "auto":
        yield broken(
            config,
            key,
            f"needs attention_backend: auto, but it is {model.attention_backend}: no "
            "kernel of torch caps scores, and nbtrain has its own.",
        )


def fpdt_attends_plainly(config: RunConfig) -> Problems:
    """With FPDT, fields that its kernel does not support are not set: grouped queries, kv_channels,
    qk_layernorm, windows, caps.
    """
    if not (chunk := config.parallel.fpdt_chunk_tokens):
        return
    for name, plain in PLAIN_IN_FPDT.items():
        if getattr(config.model, name) != plain:
            yield broken(
                config,
                f"model.{name}",
                f"is not supported with FPDT, but parallel.fpdt_chunk_tokens is {chunk}.",
                "Set fpdt_chunk_tokens: 0, or remove it.",
            )


ATTENTION_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    groups_divide,
    patterns_fit_the_layers,
    capped_scores_have_their_kernel,
    fpdt_attends_plainly,
)
