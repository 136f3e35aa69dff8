"""Rules about attention: query groups, windows, layers without rotary embeddings, and capped scores."""

from collections.abc import Callable

from nbtrain.config.rules import limits
from nbtrain.config.rules.limits import no_divisor, problems_of
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig

# {field that DeepSpeed's FPDT kernel does not support: the value that turns it off}
PLAIN_IN_FPDT = {
    "num_query_groups": None,
    "kv_channels": None,
    "qk_layernorm": False,
    "window_size": None,
    "attn_logit_softcapping": None,
}


def groups_divide(config: RunConfig) -> Problems:
    """Check that query groups have equal sizes and divide evenly among the tensor-parallel ranks.

    Each rank must get complete groups, or an equal part of one group.
    """
    heads = config.model.num_attention_heads
    if config.model.num_query_groups is None:
        return
    yield from no_divisor(config, "model.num_query_groups", heads, f"num_attention_heads({heads})")
    broken = limits.query_groups(config.shape, config.parallel.tensor_parallel_size)
    yield from problems_of(config, broken)


def patterns_fit_the_layers(config: RunConfig) -> Problems:
    """Check that a per-layer list has one entry for each layer.

    window_attn_skip_freq also needs a window_size, and must not be 1: no layer would then have the window.
    """
    model = config.model
    for key, of in (("window_attn_skip_freq", "window_size"), ("no_rope_freq", None)):
        pattern = getattr(model, key)
        if of is not None and pattern is not None and getattr(model, of) is None:
            yield broken(
                config,
                f"model.{key}",
                f"applies only with model.{of}, which is null.",
                f"Set {of}, or remove {key}.",
            )
        if isinstance(pattern, list) and len(pattern) != model.num_layers:
            yield broken(
                config,
                f"model.{key}",
                f"has length {len(pattern)}, but must have one entry for each layer: num_layers is "
                f"{model.num_layers}.",
            )
    if model.window_attn_skip_freq == 1:
        yield broken(
            config,
            "model.window_attn_skip_freq",
            "skips the window in every layer.",
            "Set window_attn_skip_freq to at least 2, or set window_size: null.",
        )


def capped_scores_have_their_kernel(config: RunConfig) -> Problems:
    """Check that attn_logit_softcapping can use nbtrain's own kernel.

    No other kernel caps attention scores.
    """
    model, key = config.model, "model.attn_logit_softcapping"
    if model.attn_logit_softcapping is None:
        return
    if model.attention_dropout:
        yield broken(
            config,
            key,
            f"needs attention_dropout: 0, but attention_dropout is {model.attention_dropout:g}. The kernel "
            "that caps attention scores does not support dropout.",
        )
    if model.attention_backend != "auto":
        yield broken(
            config,
            key,
            f"needs attention_backend: auto, but attention_backend is {model.attention_backend}. Torch's "
            "kernels cannot cap attention scores; auto uses nbtrain's own kernel.",
        )


def fpdt_attends_plainly(config: RunConfig) -> Problems:
    """Check that a run with FPDT sets no field of `model` that the FPDT kernel does not support."""
    if not (chunk := config.parallel.fpdt_chunk_tokens):
        return
    for name, plain in PLAIN_IN_FPDT.items():
        if getattr(config.model, name) != plain:
            yield broken(
                config,
                f"model.{name}",
                f"is not supported with FPDT, which parallel.fpdt_chunk_tokens({chunk}) turns on.",
                f"Set fpdt_chunk_tokens: 0, or remove {name}.",
            )


ATTENTION_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    groups_divide,
    patterns_fit_the_layers,
    capped_scores_have_their_kernel,
    fpdt_attends_plainly,
)
