"""Keys, types and bounds that DeepSpeed accepts inside the sections of its configuration.

tests/config/deepspeed/deepspeed_table.py generates the table tables/deepspeed-0.19.8.json from the installed
DeepSpeed, and test_known_keys.py next to it compares the two, so that a new version is noticed. In most
sections, DeepSpeed refuses an unknown key when the ranks start, minutes after a launch. At the top level and
in aio, flops_profiler, autotuning and activation_checkpointing, it reads the keys that it knows, ignores all
others and does not convert values, so that "false" in quotes is true.
"""

import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.version import PACKAGE
from nbtrain.config.yaml_source import show

VERSION = "0.19.8"
# DeepSpeed removes keys with this value before it looks at a section (config_utils.py).
AUTO = "auto"
# Values that pydantic accepts as a bool, in addition to true and false.
TRUTH_WORDS = {"0", "1", "off", "on", "f", "t", "false", "true", "n", "y", "no", "yes"}

# torch's optimizers, which DeepSpeed accepts by their exact names in addition to its own; not the base class.
TORCH_OPTIMIZERS = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
# Sections in which DeepSpeed ignores unknown keys.
IGNORING = ("aio", "flops_profiler", "autotuning", "activation_checkpointing")
# Number formats that the keys in OF_FORMATS accept, in upper or lower case (runtime/config.py,
# get_communication_data_type).
FORMATS = ("fp32", "fp16", "bf16")
OF_FORMATS = ("communication_data_type", "seq_parallel_communication_data_type")
# {name of a key in an earlier version of DeepSpeed: its name now}
RENAMED = {"aio.thread_count": "intra_op_parallelism"}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "mapping": "a mapping",
}

Section = Mapping[str, Mapping[str, Any]]


# Names of the rules in findings about DeepSpeed's configuration.
UNKNOWN_KEY, WRONG_VALUE = "deepspeed_keys_exist", "deepspeed_values_fit"


def _problem(rule: str, path: str, message: str) -> Finding:
    """Return a finding whose key is dotted from the top level of DeepSpeed's configuration.

    The message is a sentence that names the path, and the fix.
    """
    return Finding("error", rule, path, "", message, cost=FATAL)


@functools.lru_cache(1)
def table() -> dict[str, Any]:
    """Return the table of DeepSpeed's keys.

    The table has DeepSpeed's version, the optimizers, the rejected paths, the keys with their types, and the
    bounds.
    """
    path = PACKAGE / "config" / "deepspeed" / "tables" / f"deepspeed-{VERSION}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def key_problems(values: Mapping[str, Any], prefix: str = "") -> Iterator[Finding]:
    """Yield a finding for each key or value that DeepSpeed would reject, in the order of `values`.

    The names of top-level keys are not checked here: config/deepspeed/ds_config.py has their list.
    """
    sections, rejected, top = table()["sections"], table()["rejected"], table()["top"]
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in rejected:
            removed = f"DeepSpeed {VERSION} rejects {path}, because the feature was removed."
            yield _problem(UNKNOWN_KEY, path, f"{removed} Remove the key.")
        elif path in top:
            if rule := broken_rule(top[path], value) or _broken_format(path, value):
                yield _problem(WRONG_VALUE, path, f"{path} {rule}, not {show(value)}.")
        elif path in sections:
            if isinstance(value, Mapping):
                yield from _section_problems(sections[path], value, path)
            elif value is not None and value != AUTO:
                yield _problem(WRONG_VALUE, path, f"{path} must be a mapping of keys, not {show(value)}.")
        elif isinstance(value, Mapping) and any(known.startswith(f"{path}.") for known in sections):
            yield from key_problems(value, f"{path}.")


def _broken_format(path: str, value: Any) -> str | None:
    known = value is None or value == AUTO or str(value).lower() in FORMATS
    return None if path not in OF_FORMATS or known else f"must be one of {', '.join(FORMATS)}"


def ignored_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that DeepSpeed ignores without an error.

    Only some sections ignore unknown keys; in the others, DeepSpeed refuses them.
    """
    return [
        f"{section}.{key}"
        for section in IGNORING
        if isinstance(inner := values.get(section), Mapping)
        for key in inner
        if key not in _known(table()["sections"].get(section, {}))
    ]


def _section_problems(section: Section, values: Mapping[str, Any], path: str) -> Iterator[Finding]:
    known = _known(section)
    for key, value in values.items():
        inner = f"{path}.{key}"
        if inner in table()["rejected"] or inner in table()["sections"]:
            yield from key_problems({key: value}, f"{path}.")
        elif key not in known:
            near = nearest_key(inner)
            hint = f" Nearest: {near}." if near else ""
            unknown = f"DeepSpeed {VERSION} has no key {key} in {path}.{hint}"
            yield _problem(UNKNOWN_KEY, inner, f"{unknown} Remove the key, or correct its name.")
        elif rule := broken_rule(known[key], value):
            yield _problem(WRONG_VALUE, inner, f"{inner} {rule}, not {show(value)}.")


def _known(section: Section) -> Section:
    """Return the known keys of a section, including both the alias of a field and its own name."""
    return {**section, **{entry["also"]: entry for entry in section.values() if "also" in entry}}


def nearest_key(path: str) -> str:
    """Return the known key of the same section that is most similar to an unknown key.

    "" if no key is similar.
    """
    section, _, key = path.rpartition(".")
    known = _known(table()["sections"].get(section, {}))
    return RENAMED.get(path) or next(iter(difflib.get_close_matches(key, known, n=1)), "")


def unknown_optimizer(kind: object) -> str:
    """Return a sentence that says that DeepSpeed does not know this optimizer; "" if DeepSpeed knows it.

    The sentence includes the most similar name, if there is one.
    """
    own = table()["optimizers"]
    if kind == AUTO or (isinstance(kind, str) and (kind.lower() in own or kind in TORCH_OPTIMIZERS)):
        return ""
    # DeepSpeed accepts its own names in any case. In torch's spelling, they are easier to recognize.
    known = {name.lower(): name for name in (*own, *TORCH_OPTIMIZERS)}
    near = difflib.get_close_matches(str(kind).lower(), known, n=1)
    return (
        f"DeepSpeed {VERSION} has no optimizer {show(kind)}.{f' Nearest: {known[near[0]]}.' if near else ''}"
    )


def broken_rule(entry: Mapping[str, Any], value: Any) -> str | None:
    """Return a rule that a value breaks, such as "must be at least 0".

    None if DeepSpeed accepts the value.
    """
    kind = entry["type"]
    if kind in ("any", "section") or value == AUTO or (value is None and entry.get("null")):
        return None
    if kind == "choice":
        known = entry["choices"]
        words = ", ".join(show(choice) for choice in known)
        return None if any(value == choice for choice in known) else f"must be one of {words}"
    if not _is(kind, value) or (entry.get("exact") and not _is_exact(kind, value)):
        return f"must be {_WORDS[kind]}"
    number = float(value) if kind in ("int", "float") else 0.0
    for limit, holds, words in (
        ("ge", lambda bound: number >= bound, "at least"),
        ("gt", lambda bound: number > bound, "more than"),
        ("le", lambda bound: number <= bound, "at most"),
        ("lt", lambda bound: number < bound, "less than"),
    ):
        if limit in entry and not holds(entry[limit]):
            return f"must be {words} {entry[limit]:g}"
    return None


def _is(kind: str, value: Any) -> bool:
    """Return whether pydantic accepts a value for a type, possibly by converting it."""
    if kind == "bool":
        return (
            isinstance(value, bool)
            or (isinstance(value, int | float) and value in (0, 1))
            or (isinstance(value, str) and value.lower() in TRUTH_WORDS)
        )
    if kind in ("int", "float"):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return False
        return kind == "float" or number.is_integer()
    return isinstance(value, {"str": str, "list": list, "mapping": Mapping}[kind])


def _is_exact(kind: str, value: Any) -> bool:
    """Return whether a value has exactly this type.

    DeepSpeed uses the values of some keys without conversion. A number must then not be text or a boolean.
    """
    if kind == "str":
        return True
    return not isinstance(value, str) and (kind == "bool" or not isinstance(value, bool))
