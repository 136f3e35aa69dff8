"""Check of a single label of a run. kubernetes_section.py defines the format."""

import functools
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nbtrain.base.text.terminal import shortened
from nbtrain.config.sections.kubernetes_section import LABEL_WORDS, LabelKey, LabelValue


@functools.cache
def _adapter(of_key: bool) -> TypeAdapter:
    return TypeAdapter(LabelKey if of_key else LabelValue)


def label_problem(key: Any, value: Any) -> str | None:
    """Return the rule that a label breaks, as a submission would report it. None if the label is valid.

    A value of None, which removes the label, is valid.
    """
    if words := _broken(key, of_key=True):
        return f"labels: the key {shortened(repr(key))} {words}."
    if value is not None and (words := _broken(value, of_key=False)):
        return f"labels.{shortened(key)} = {shortened(repr(value))}: {words}."
    return None


def _broken(text: Any, of_key: bool) -> str | None:
    """Return the rule that a key or a value breaks. None if it is valid."""
    try:
        _adapter(of_key).validate_python(text, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        context = first.get("ctx", {})
        if first["type"] == "string_pattern_mismatch":
            return LABEL_WORDS[context["pattern"]]
        if first["type"] == "string_too_long":
            return f"has {len(text):,} characters; at most {context['max_length']:,} are allowed"
        return "must be text; write it in quotes"
    return None
