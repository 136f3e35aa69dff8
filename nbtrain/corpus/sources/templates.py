"""Templates for fine-tuning text, in which braces around anything but a known field name are plain text.

Values are inserted verbatim, so they may contain braces. Unlike in str.format, a field cannot access
attributes or indexes.
"""

import re
from collections.abc import Mapping
from itertools import zip_longest

# Stanford Alpaca's two prompts, verbatim: a model that was trained on them must be prompted with them.
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)


class Template:
    """Text with fields, e.g. Template("<|{role}|>\\n{content}\\n", ("role", "content"))."""

    def __init__(self, text: str, fields: tuple[str, ...]):
        # The group in the pattern makes re.split keep the fields: text, field, text, field, ..., text.
        pieces = re.split(r"\{(" + "|".join(map(re.escape, fields)) + r")\}", text)
        self._texts, self._fields = pieces[::2], pieces[1::2]

    @property
    def fields(self) -> frozenset[str]:
        """Return the names of the template's fields."""
        return frozenset(self._fields)

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Return the template's segments in order, each as (text or field name, whether it is a field)."""
        texts = [(text, False) for text in self._texts]
        fields = [(name, True) for name in self._fields]
        return [part for pair in zip_longest(texts, fields) for part in pair if part is not None]

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text with every field replaced. Raises KeyError for a field without a value."""
        parts = [self._texts[0]]
        for name, text in zip(self._fields, self._texts[1:], strict=True):
            parts += [values[name], text]
        return "".join(parts)
