"""The format of a run's labels, checked for one label at a time; the rule: kubernetes_section.py."""

import functools
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nbtrain.base.text.terminal import shortened
from nbtrain.config.sections.kubernetes_section import LABEL_WORDS, LabelKey, LabelValue


@functools.cache
def _adapter(of_key: bool) -> TypeAdapter:
    return TypeAdapter(LabelKey if of_key else LabelValue)


def label_problem(key: Any, value: Any) -> str | None:
    """Return the rule that a label breaks, as submissions report it; None if it breaks none. A value of None
    removes the label.
    """
    if words := _broken(key, of_key=True):
        return f"labels: the key {shortened(repr(key))} {words}."
    if value is not None and (words := _broken(value, of_key=False)):
        return f"labels.{shortened(key)} = {shortened(repr(value))}: {words}."
    return None


def _broken(text: Any, of_key: bool) -> str | None:
    """Return the rule that a key or a value breaks."""
    try:
        _adapter(of_key).validate_python(text, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        context = first.get("ctx", {})
        if first["type"] == "string_pattern_mismatch":
            return LABEL_WORDS[context["pattern"]]
        if first["type"] == "string_too_long":
            return f"has {len(text):,} characters; the field takes at most {context['max_length']:,}"
        return "must be text; write it in quotes"
    return None
