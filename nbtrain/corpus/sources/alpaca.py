"""Reads examples in Stanford Alpaca's format: instruction, optional input, and output (in the loss)."""

from typing import Any

from pydantic import BaseModel

from nbtrain.corpus.records import Example
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.keys import SYSTEM, RecordNotes, holds_value
from nbtrain.corpus.sources.templates import ALPACA_WITH_INPUT, ALPACA_WITHOUT_INPUT, Template

FIELDS = ("instruction", "input", "system")


class AlpacaReader(ExampleReader):
    """Reads instruction, output, an optional input, and a system prompt if the template has {system}."""

    kind = "alpaca"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        own = self.config.template
        self._with_input = Template(own or ALPACA_WITH_INPUT, FIELDS)
        self._without_input = Template(own or ALPACA_WITHOUT_INPUT, FIELDS)

    def example(self, value: dict[str, Any], notes: RecordNotes) -> Example:
        config = self.config
        values = {
            "instruction": answer_of(value, config.instruction_key, kind=self.kind),
            "input": "",
            "system": "",
        }
        if value.get(config.input_key) is not None:
            values["input"] = text_of(value, config.input_key)
        template = self._with_input if values["input"] else self._without_input
        if values["input"] and "input" not in template.fields:
            raise BrokenExample(f"{config.input_key!r} is not empty, but the template has no {{input}}")
        read = [config.instruction_key, config.input_key, config.output_key]
        if "system" in template.fields:
            system_key = next(
                (name for name in self.keys.readable(SYSTEM.names) if holds_value(value.get(name))), None
            )
            if system_key is not None:
                values["system"] = text_of(value, system_key)
                read.append(system_key)
        answer = answer_of(value, config.output_key, kind=self.kind)
        self.keys.note_unread(value, read, notes)
        return joined([(template.render(values), False), (answer, True)])
