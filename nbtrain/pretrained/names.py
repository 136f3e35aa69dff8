"""Matches tensor names in a file with a model's names, whatever wrapped the model when it was saved.

    model.layers.0.self_attn.q_proj.weight                        transformers' name
    layers.0.self_attn.q_proj.weight                              a model without its output layer
    _orig_mod.model.layers.0.self_attn.q_proj.weight              torch.compile
    module.model.layers.0._fsdp_wrapped_module.self_attn. ...     DDP, FSDP
    base_model.model.model.layers.0.self_attn.q_proj.weight       peft
    actor.model.layers.0.self_attn.q_proj.weight                  a user's own module

A name in the file means the tensor with whose name it ends. All tensors of a model have the same prefix,
except for roots that transformers itself adds or omits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from nbtrain.base.errors import CheckpointError

# Modules that only wrap another one: torch.compile, DDP, FSDP, activation checkpointing, peft.
WRAPPERS = frozenset(
    (
        *("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
        *("_forward_module", "base_layer"),
    )
)
ROOTS = frozenset(("model", "transformer", "base_model", "language_model"))


def unwrapped(name: str) -> str:
    """Return a tensor's name without the modules that only wrap others."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def matched(names: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return {name: the wanted name that it means}. Names without a match are omitted.

    Raises CheckpointError if two names mean the same tensor; the caller adds the file to its message.
    """
    cores = {_core(name): name for name in wanted}
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        parts = unwrapped(name).split(".")
        # The longest ending first: `norm.weight` is also the ending of other norms.
        for start in range(len(parts)):
            if (core := ".".join(parts[start:])) in cores:
                found[name] = core, ".".join(parts[:start])
                break
    prefixes = Counter(prefix for core, prefix in found.values() if "." in core.partition(".")[2])
    common = prefixes.most_common(1)[0][0] if prefixes else ""
    kept = {name: cores[core] for name, (core, prefix) in found.items() if _is_of(prefix, common)}
    _refuse_two_of_one(kept)
    return kept


def _core(name: str) -> str:
    """Return a name without the roots at its beginning."""
    parts = name.split(".")
    first = next(place for place, part in enumerate(parts) if part not in ROOTS)
    return ".".join(parts[first:])


def _is_of(prefix: str, common: str) -> bool:
    """Return whether a prefix belongs to the model: it is the common prefix, a part of it, or only roots."""
    return (
        prefix == common
        or common.startswith(f"{prefix}.")
        or all(part in ROOTS for part in prefix.split(".") if part)
    )


def _refuse_two_of_one(meant: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, wanted in meant.items():
        if (other := first.setdefault(wanted, name)) != name:
            raise CheckpointError(
                f"holds {other} and {name}, which are two names of one tensor, so it is not clear which one "
                f"to use. Remove one of them, or get another copy of the model."
            )
