"""A prompt and its completion, of which the completion is learnt."""

from typing import Any

from nbtrain.corpus.records import Example
from nbtrain.corpus.sources.instructions import ExampleReader, answer_of, joined, text_of


class PromptCompletionReader(ExampleReader):
    """Two texts, the second of which is learnt."""

    kind = "prompt-completion"

    def columns(self) -> dict[str, str]:
        return {self.config.prompt_key: "prompt_key", self.config.completion_key: "completion_key"}

    def example(self, value: dict[str, Any]) -> Example:
        prompt = text_of(value, self.config.prompt_key)
        return joined([(prompt, False), (answer_of(value, self.config.completion_key), True)])
