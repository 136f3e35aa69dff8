"""Rows of the mapping: query groups, head size, query-key norms, windows, layers without rope, logit cap."""

import ast
from typing import Any

from nbtrain.foreign.mapping.conversion import Reading, Writing
from nbtrain.foreign.mapping.rows_model import Row


def _read_groups(source: Reading) -> None:
    key, heads = "model.num_query_groups", source.value("num_attention_heads")
    if source.has("group_query_attention"):
        if source.value("group_query_attention"):
            source.set(key, source.value("num_query_groups"), "num_query_groups")
        elif (setting := source.setting("num_query_groups")) is not None and setting.value != heads:
            source.note(setting.place, f"{setting.text}: ignored, because it needs --group-query-attention.")
    elif source.value("num_key_value_heads") not in (None, heads):
        source.set(key, source.value("num_key_value_heads"), "num_key_value_heads")


def _write_groups(target: Writing) -> None:
    groups = target.config.model.num_query_groups
    if groups in (None, target.config.model.num_attention_heads):
        return
    if target.has("group_query_attention"):
        target.add("group_query_attention")
        target.add("num_query_groups", groups)
    elif target.has("num_key_value_heads"):
        target.add("num_key_value_heads", groups)
    else:
        target.cannot(
            "model.num_query_groups",
            "has no grouped-query attention: each query head has its own key head",
        )


def _read_head_size(source: Reading) -> None:
    size, hidden = source.known("kv_channels", "model.kv_channels"), source.value("hidden_size")
    heads = source.value("num_attention_heads")
    if size is not None and not (isinstance(heads, int) and heads * size == hidden):
        source.set("model.kv_channels", size, "kv_channels")


def _write_head_size(target: Writing) -> None:
    if target.config.model.kv_channels is not None:
        target.add("kv_channels", target.config.model.kv_channels)


def _read_head_norms(source: Reading) -> None:
    if source.value("qk_layernorm"):
        source.set("model.qk_layernorm", True, "qk_layernorm")


def _write_head_norms(target: Writing) -> None:
    if not target.config.model.qk_layernorm:
        return
    if target.has("qk_layernorm"):
        target.add("qk_layernorm")
    else:
        target.cannot("model.qk_layernorm", "does not normalize queries and keys")


def _read_windows(source: Reading) -> None:
    key, text = "model.window_size", source.value("window_size")
    if text is None:
        return
    try:
        # Megatron's tuple_type: "127,0" or "(127,0)", the tokens before and after a query.
        before, behind = (int(part) for part in str(text).strip("()").split(","))
    except ValueError:
        before, behind = -1, -1
    if behind != 0 or before < 0:
        place = source.place("window_size")
        source.fail(
            key,
            place,
            f"--window-size {text}: the value must be N,0, which means N tokens before a query and no token "
            "after it. Add model.window_size=... to the command.",
        )
        return
    source.set(key, before + 1, "window_size")
    _read_pattern(source, "window_attn_skip_freq")


def _write_windows(target: Writing) -> None:
    model = target.config.model
    if model.window_size is None:
        return
    if not target.has("window_size"):
        target.cannot("model.window_size", "has no sliding-window attention")
        return
    target.add("window_size", f"{model.window_size - 1},0")
    _write_pattern(target, "window_attn_skip_freq", model.window_attn_skip_freq)


def _read_rope_pattern(source: Reading) -> None:
    _read_pattern(source, "no_rope_freq")


def _write_rope_pattern(target: Writing) -> None:
    model, pattern = target.config.model, target.config.model.no_rope_freq
    if pattern is None:
        return
    if not target.has("no_rope_freq"):
        target.cannot("model.no_rope_freq", "uses rotary positions in every layer or in none")
        return
    if isinstance(pattern, int) and model.num_layers % pattern:
        # Megatron accepts a number only if it divides the number of layers.
        pattern = [int(layer % pattern == 0) for layer in range(1, model.num_layers + 1)]
    _write_pattern(target, "no_rope_freq", pattern)


def _read_pattern(source: Reading, dest: str) -> None:
    text, key = source.value(dest), f"model.{dest}"
    if text is None:
        return
    try:
        source.set(key, pattern_of(str(text)), dest)
    except ValueError:
        flag = source.table.by_dest[dest][0].flags[0]
        source.fail(
            key,
            source.place(dest),
            f"{flag} {text}: the value must be a number, or lists of 0 and 1 with + and *, such as "
            "([1]*3+[0])*2.",
        )


def _write_pattern(target: Writing, dest: str, pattern: Any) -> None:
    if isinstance(pattern, list):
        target.add(dest, f"[{','.join(map(str, pattern))}]")
    elif pattern is not None:
        target.add(dest, str(pattern))


def pattern_of(text: str) -> int | list[int]:
    """Expand a layer pattern in Megatron's notation: 4, or ([1]*3+[0])*2. Raises ValueError otherwise."""
    try:
        found = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(text) from error
    return found


# Maximum number of layers that a product of lists may expand to.
_LONGEST = 100_000


def _evaluated(node: ast.expr) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        entries = [_evaluated(entry) for entry in node.elts]
        return [entry if isinstance(entry, int) else _refuse(node) for entry in entries]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, int) != isinstance(right, int):
            times, pattern = (left, right) if isinstance(left, int) else (right, left)
            assert isinstance(times, int) and isinstance(pattern, list)
            if 0 < times * len(pattern) <= _LONGEST:
                return pattern * times
    return _refuse(node)


def _refuse(node: ast.expr) -> Any:
    raise ValueError(ast.unparse(node))


def _without_caps(target: Writing) -> None:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(target.config.model, name) is not None:
            what = "attention scores" if name.startswith("attn") else "logits"
            target.cannot(f"model.{name}", f"does not cap {what}")


def _nothing(source: Reading) -> None:
    """Read nothing, because no flag expresses these fields."""


ATTENTION_ROWS = (
    Row(
        ("model.num_query_groups",),
        ("group_query_attention", "num_query_groups", "num_key_value_heads"),
        _read_groups,
        _write_groups,
    ),
    Row(("model.kv_channels",), ("kv_channels",), _read_head_size, _write_head_size),
    Row(("model.qk_layernorm",), ("qk_layernorm",), _read_head_norms, _write_head_norms),
    Row(
        ("model.window_size", "model.window_attn_skip_freq"),
        ("window_size", "window_attn_skip_freq"),
        _read_windows,
        _write_windows,
    ),
    Row(("model.no_rope_freq",), ("no_rope_freq",), _read_rope_pattern, _write_rope_pattern),
    Row(("model.attn_logit_softcapping", "model.final_logit_softcapping"), (), _nothing, _without_caps),
)
