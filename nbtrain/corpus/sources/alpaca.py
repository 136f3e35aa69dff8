"""Stanford Alpaca's examples: an instruction, perhaps with an input, and the output that is learnt."""

from typing import Any

from pydantic import BaseModel

from nbtrain.corpus.records import Example
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.templates import ALPACA_WITH_INPUT, ALPACA_WITHOUT_INPUT, Template


class AlpacaReader(ExampleReader):
    """instruction, input (which may be missing, null or empty) and output."""

    kind = "alpaca"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        fields = ("instruction", "input")
        own = self.config.template
        self._with_input = Template(own or ALPACA_WITH_INPUT, fields)
        self._without_input = Template(own or ALPACA_WITHOUT_INPUT, fields)

    def example(self, value: dict[str, Any]) -> Example:
        values = {"instruction": answer_of(value, "instruction"), "input": ""}
        if value.get("input") is not None:
            values["input"] = text_of(value, "input")
        template = self._with_input if values["input"] else self._without_input
        if values["input"] and "input" not in template.fields:
            raise BrokenExample("'input' is not empty, but the template has no {input}")
        return joined([(template.render(values), False), (answer_of(value, "output"), True)])
