"""Rules of attention's fields: groups of queries, windows, layers without rope, caps of scores."""

import math
from collections.abc import Callable

from nbtrain.config.rules.wording import Problems, found, join, no_divisor
from nbtrain.config.schema import RunConfig

# What FPDT's kernel, DeepSpeed's, does not do with queries, keys and scores: {field: its plain value}.
PLAIN_IN_FPDT = {
    "num_query_groups": None,
    "kv_channels": None,
    "qk_layernorm": False,
    "window_size": None,
    "attn_logit_softcapping": None,
}


def groups_divide(config: RunConfig) -> Problems:
    """All groups have equally many queries; tensor ranks have whole groups, or equal parts of one."""
    model, tensor, key = config.model, config.parallel.tensor_parallel_size, "model.num_query_groups"
    heads, groups = model.num_attention_heads, model.resolved_num_query_groups
    if model.num_query_groups is None:
        return
    yield from no_divisor(config, key, heads, f"num_attention_heads({heads})")
    if heads % groups or heads % tensor:
        return
    if groups % tensor and tensor % groups:
        sizes = [size for size in range(1, heads + 1) if heads % size == 0]
        legal = [size for size in sizes if groups % size == 0 or size % groups == 0]
        near = [
            *[size for size in legal if size < tensor][-1:],
            *[size for size in legal if size > tensor][:1],
        ]
        yield (
            f"{found(config, 'parallel.tensor_parallel_size')}\n"
            f"  must be a multiple or a divisor of num_query_groups({groups}): each rank has whole groups, "
            f"or an equal part of one; nearest: {join(near)}."
        )
    elif (rows := (heads + 2 * groups) * model.resolved_kv_channels) % tensor:
        unit = tensor // math.gcd(tensor, heads + 2 * groups)
        yield (
            f"{found(config, 'parallel.tensor_parallel_size')}\n"
            f"  must divide the rows of query, key and value, (num_attention_heads({heads}) + 2 * "
            f"num_query_groups({groups})) * head size({model.resolved_kv_channels}) = {rows}: with fewer "
            "groups than ranks they are cut evenly. Set another tensor_parallel_size, or a multiple of "
            f"{unit} as kv_channels."
        )


def patterns_fit_the_layers(config: RunConfig) -> Problems:
    """A pattern has one entry for each layer, and the setting that it applies to."""
    model = config.model
    for key, of in (("window_attn_skip_freq", "window_size"), ("no_rope_freq", None)):
        pattern = getattr(model, key)
        if of is not None and pattern is not None and getattr(model, of) is None:
            yield f"{found(config, f'model.{key}')}\n  is read with {of} only. Set {of}, or remove it."
        if isinstance(pattern, list) and len(pattern) != model.num_layers:
            yield (
                f"{found(config, f'model.{key}')}\n  has {len(pattern)} entries, but num_layers is "
                f"{model.num_layers}: a list has one for each layer."
            )
    if model.window_attn_skip_freq == 1:
        yield (
            f"{found(config, 'model.window_attn_skip_freq')}\n"
            "  leaves the window out in every layer. Set window_size: null, or a number from 2 on."
        )


def capped_scores_have_their_kernel(config: RunConfig) -> Problems:
    """Scores are capped by nbtrain's own kernel, which has no dropout."""
    model, key = config.model, "model.attn_logit_softcapping"
    if model.attn_logit_softcapping is None:
        return
    if model.attention_dropout:
        yield (
            f"{found(config, key)}\n  needs attention_dropout: 0, but it is {model.attention_dropout:g}: the "
            "kernel that caps scores has no dropout."
        )
    if model.attention_backend != "auto":
        yield (
            f"{found(config, key)}\n  needs attention_backend: auto, but it is {model.attention_backend}: no "
            "kernel of torch caps scores, and nbtrain has its own."
        )


def fpdt_attends_plainly(config: RunConfig) -> Problems:
    """FPDT's kernel is DeepSpeed's: a key for each query, heads of hidden_size together, all in sight."""
    if not (chunk := config.parallel.fpdt_chunk_tokens):
        return
    for name, plain in PLAIN_IN_FPDT.items():
        if getattr(config.model, name) != plain:
            yield (
                f"{found(config, f'model.{name}')}\n"
                f"  is not known to FPDT, and parallel.fpdt_chunk_tokens is {chunk}. "
                "Set fpdt_chunk_tokens: 0, or remove it."
            )


ATTENTION_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    groups_divide,
    patterns_fit_the_layers,
    capped_scores_have_their_kernel,
    fpdt_attends_plainly,
)
