"""Problems of a draft at their fields: which field each belongs to, and what is left to say beside it."""

import re
from collections.abc import Iterable
from typing import Any

from nbtrain.config.load import override_layer
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.obstacle import Obstacle
from nbtrain.lab.form.draft import Draft
from nbtrain.lab.form.fields import Field, every_field, field_at
from nbtrain.planner.findings import Finding, finding_of_problem

# "override batch.max_steps=5", the place of a message that names no key.
_OVERRIDE = re.compile(r"override (?P<key>[a-z_]+(\.[A-Za-z0-9_-]+)*)")
# "evaluation.tasks.0.path", the key that a message begins with.
_KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
# "micro_batch_size(5)": a rule's number with the field that it comes from.
_NUMBER = re.compile(r"\b([a-z][a-z0-9_]+)\(")
# What a layout's product calls the sizes that it multiplies.
_PRODUCT = {
    "data": "data_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "tensor": "tensor_parallel_size",
}
# "  and override batch.train_steps=5: batch.train_steps = 5", the second line of a rule about two fields.
_AND = re.compile(r"^\s+and (override .*?: |\S+:\d+: )?(?P<found>[a-z_.]+ = .*)$", re.MULTILINE)
# "data.sources[0].kind = jsonl", the first line of a rule about something inside a field.
_FIRST_LINE = re.compile(r"\A\S+ = [^\n:]*(?=\n)")
# " = 250", between the key and the rule.
_VALUE = re.compile(r" = (?P<value>.*?)(?P<end>\n\s*|: )", re.DOTALL)


def problems_by_key(draft: Draft, problems: Iterable[str], config: RunConfig | None) -> list[dict[str, Any]]:
    """{key, message, full, also} of each problem, in the order of the form's fields, those of none first.

    `message` is without the place, key and value that stand at the field anyway; `also` are other fields that
    were changed and whose numbers the rule names.
    """
    found = [_problem(draft, text, config) for text in dict.fromkeys(problems)]
    order = {key: at for at, key in enumerate(every_field())}
    return sorted(found, key=lambda one: order.get(one["key"], -1))


def _problem(draft: Draft, text: str, config: RunConfig | None) -> dict[str, Any]:
    _, rest, exact, one = _parts(draft, text, config)
    named = {_PRODUCT.get(word, word) for word in _NUMBER.findall(rest)}
    also = [
        key
        for key in draft.overrides
        if (key.rpartition(".")[2] in named or re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", rest))
        and (one is None or key != one.key)
    ]
    return {
        "key": one.key if one else None,
        "message": _rule(rest, exact, one is not None and one.key == exact),
        "full": text,
        "also": also,
    }


def _parts(draft: Draft, text: str, config: RunConfig | None) -> tuple[str, str, str, Field | None]:
    """(place, message without it, key that the message is about, its field) of a message."""
    place, rest = _place(draft, text)
    exact = finding_of_problem(f"?: {rest}").key or _key_of_place(place, config)
    begins = match[0] if (match := _KEY.match(rest)) else ""
    # A key that is missing has no place: its section's is named, or that of a key beside it.
    if begins in every_field() and rest.startswith(f"{begins} is missing"):
        exact = begins
    # Of text that is no YAML, of something in a list, and of a section that is set by a key inside it.
    if (
        not exact and field_at(begins) and (rest.startswith((f"{begins} = ", f"{begins}: ")) or "." in begins)
    ) or (begins in every_field() and exact.startswith(f"{begins}.")):
        exact = begins
    return place, rest, exact, field_at(exact)


def _place(draft: Draft, text: str) -> tuple[str, str]:
    """The place that a message begins with, "" if with none, and the message after it.

    An override's place repeats its value, which may hold anything.
    """
    known = sorted(override_layer(draft.overrides).origins.values(), key=len, reverse=True)
    for place in known:
        if text.startswith(f"{place}: "):
            return place, text.removeprefix(f"{place}: ")
    place = finding_of_problem(text).place
    return place, text.removeprefix(f"{place}: ") if place else text


def _key_of_place(place: str, config: RunConfig | None) -> str:
    """The key that an override or a line of the YAML set, if it is one alone."""
    if match := _OVERRIDE.match(place):
        return match["key"]
    keys = [key for key, where in config._origins.items() if where == place] if config and place else []
    return keys[0] if len(keys) == 1 else ""


def _rule(rest: str, key: str, whole: bool) -> str:
    """The message without what its field shows: key and value."""
    if not key or not re.match(rf"{re.escape(key)}(?![.\w\[])", rest):
        # "data.sources[0].kind = jsonl", a line of its own.
        return _one_paragraph(_FIRST_LINE.sub(r"\g<0>:", rest))
    rest = rest.removeprefix(key)
    if not (match := _VALUE.match(rest)):
        return _one_paragraph(rest.removeprefix(":") if whole else f"{key}{rest}")
    rule = _AND.sub(r"  stands beside \g<found>:", rest[match.start("end") :]).removeprefix(":")
    # The value of something inside a field's text is not seen at once.
    return _one_paragraph(rule if whole else f"{key} = {match['value']}: {rule}")


def _one_paragraph(text: str) -> str:
    words = " ".join(text.split())
    # A key and a path are no words to begin with a capital.
    return words if re.match(r"\S+[._(/]\S", words) else words[:1].upper() + words[1:]


def shortages_by_key(
    draft: Draft, shortages: Iterable[Obstacle], config: RunConfig | None
) -> list[dict[str, Any]]:
    """{key, kind, message, rule, fix} of what a machine lacks; `rule` is what is said at the field."""
    found = []
    for one in shortages:
        place, rest, exact, at = _parts(draft, one.message, config)
        # The value of an override stands at its field.
        message = rest if place.startswith("override ") else one.message
        if one.fix:
            # Its own command is for a run whose name is not known there; the fix names it.
            message = message.replace(" Make it with `nbtrain prepare RUN.yaml`.", "")
        rule = _rule(rest, exact, at is not None and at.key == exact)
        key = at.key if at else None
        found.append({"key": key, "kind": one.kind, "message": message, "rule": rule, "fix": one.fix})
    return found


def findings_by_key(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """{key, level, label, message, fix} of the plan's findings."""
    found = []
    for one in findings:
        at = field_at(one.key)
        key = at.key if at else None
        found.append(
            {"key": key, "level": one.level, "label": one.label, "message": one.message, "fix": one.fix}
        )
    return found
