"""Messages about values that the schema rejects: the place, the value, and the rule."""

import re
from typing import Any

from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.nearest import nearest
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import NAME_PATTERN, NAME_RULE
from nbtrain.config.names.keys import entry_models
from nbtrain.config.sections.backend_section import BACKEND_WORDS
from nbtrain.config.sections.data_section import LANGUAGE_CODE
from nbtrain.config.sections.fields import STEP, WORD
from nbtrain.config.sections.kubernetes_section import LABEL_WORDS
from nbtrain.config.sections.schedule_section import STEP_SIZES
from nbtrain.config.sections.sources import SOURCE_TYPES, kind_of
from nbtrain.config.yaml_source import Located, show

SOURCES = {kind_of(source): source for source in SOURCE_TYPES}

# nbtrain's messages for some of pydantic's errors. pydantic's own messages say less.
_WORDING = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; write it in quotes",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a section: a mapping of keys",
    "model_attributes_type": "must be a mapping with a kind, e.g. {kind: jsonl, path: texts.jsonl}",
    "finite_number": "must be a finite number",
}
# {end of a key: message if the key's value is not a number}
_UNITS = {
    "_seconds": "must be a number of seconds, e.g. 7200",
    "_minutes": "must be a number of minutes, e.g. 90",
    "_bytes_per_second": "must be a number of bytes per second, e.g. 10000000",
    "_bytes": "must be a number of bytes, e.g. 10000000",
    "_freq": "must be a whole number N, or a list of 0 and 1, one for each layer, e.g. [1, 1, 0]",
}
# {pydantic's error: (nbtrain's message, the name of the limit in its context)}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_PATTERNS = {
    f"^{NAME_PATTERN.pattern}$": NAME_RULE,
    STEP_SIZES: "must be TOKENS:SEQUENCES pairs, the first at 0 tokens (suffixes K, M, B and T are allowed), "
    'e.g. "0:16 2.4B:320 12B:1536"',
    LANGUAGE_CODE: "must be a language code of two or three lower-case letters, such as en, de or zh",
    "^[a-z][a-z0-9-]{0,23}$": "must be the code of a Wikipedia as in its URL, such as en, simple or zh-yue",
    "^([0-9]{8}|latest)$": "must be the date of a dump (YYYYMMDD), or latest",
    "^[0-9a-f]{40}$": "must be a SHA-1: 40 lower-case hexadecimal digits",
    r"\{content\}": "must contain {content}",
    r"\{instruction\}": "must contain {instruction}",
    **LABEL_WORDS,
    **BACKEND_WORDS,
}

NAMES = ("name", "data.name", "tokenizer.name")


def schema_finding(entry: Any, located: Located, label: str) -> Finding:
    """Return the finding about one of pydantic's errors: the place, the value, and the rule."""
    location = entry["loc"]
    # pydantic's location also has the kind of a source after its index, and the form of a layer pattern or
    # checkpoint step, such as "<each layer>". They are not keys.
    parts = [
        part
        for before, part in zip((None, *location), location)
        if not (isinstance(before, int) and part in SOURCES) and not str(part).startswith("<")
    ]
    dotted = ".".join(str(part) for part in parts)
    place = located.where(dotted) or label
    if entry["type"] == "string_type" and entry["input"] is None and dotted in NAMES:
        # name= on the command line.
        place = place.removesuffix("null")
    return Finding("error", "schema", dotted, place, _message(entry, location, parts, dotted), cost=FATAL)


def _message(entry: Any, location: tuple[Any, ...], parts: list[Any], dotted: str) -> str:
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == "string_type" and entry["input"] is None and dotted in NAMES:
        fix = f"Set a name, e.g. {dotted}=my-run, or omit {dotted} to keep the YAML's value."
        rule = NAME_RULE.rpartition(", e.g. ")[0]
        return f"{dotted} is empty: a name {rule}. {fix}"
    found = f"{dotted} = {show(entry['input'])}"
    if parts and parts[-1] == "[key]":
        section = ".".join(str(part) for part in parts[:-2])
        found = f"{section} has the key {show(entry['input'])}"
    if kind == "model_type" and dotted == "backend":
        known = entry["input"] in ("local", "hosts", "slurm", "kubernetes")
        engine = entry["input"] if known else "slurm"
        return f"{found}: must be a section with a kind: write `backend: {{kind: {engine}}}`."
    if kind == "missing":
        return f"{dotted} is missing; it has no default."
    if kind == "extra_forbidden":
        section, _, key = dotted.rpartition(".")
        item = SOURCES.get(location[-2]) or entry_models().get(section.rpartition(".")[0])
        near = nearest(key, item.model_fields) if item else ""
        return f"{section} has no key `{shortened(key)}`.{near}"
    if kind == "union_tag_not_found":
        return f"{dotted} has no `kind`; it must be one of {', '.join(SOURCES)}."
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        rule = f"must be one of {', '.join(SOURCES)}.{nearest(tag, SOURCES)}"
        return f"{dotted}.kind = {shortened(tag)}: {rule}"
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        rule = _PATTERNS.get(pattern, f"must match {pattern}")
        return f"{found}: {rule}."
    if {STEP, WORD} & {*location} and kind != "less_than_equal":
        near = nearest(str(entry["input"]), ("newest", "best")) if kind == "literal_error" else ""
        return f"{found}: must be newest, best, or the number of a step, at least 1.{near}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"{found}: must be {words} {_number(context[limit])}."
    if kind == "too_short":
        return f"{found}: must have at least {counted(context['min_length'], 'item')}."
    if kind == "string_too_long":
        length, most = len(entry["input"]), context["max_length"]
        return f"{found}: has {length:,} characters; at most {most:,} are allowed."
    if kind == "literal_error":
        rule = entry["msg"].replace("Input should be ", "must be ")
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{found}: {rule}.{nearest(str(entry['input']), choices)}"
    if kind in ("int_type", "int_parsing", "float_type", "float_parsing"):
        for ending, rule in _UNITS.items():
            if dotted.endswith(ending):
                return f"{found}: {rule}."
    rule = _WORDING.get(kind) or re.sub(r"^Input should be ", "must be ", entry["msg"])
    return f"{found}: {rule[:1].lower()}{rule[1:].rstrip('.')}."


def _number(limit: float) -> str:
    """Format a bound for readers: 1,000,000; 0.5; 1e-08."""
    return f"{int(limit):,}" if float(limit).is_integer() else f"{limit:g}"
