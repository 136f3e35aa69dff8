"""Reads prompts and their completions; the completions are in the loss."""

from typing import Any

from nbtrain.corpus.records import Example
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.keys import RecordNotes
from nbtrain.corpus.sources.messages import holds_messages


class PromptCompletionReader(ExampleReader):
    """Reads two texts; the second is in the loss."""

    kind = "prompt-completion"

    def required_columns(self) -> dict[str, str]:
        return {self.config.prompt_key: "prompt_key", self.config.completion_key: "completion_key"}

    def example(self, value: dict[str, Any], notes: RecordNotes) -> Example:
        prompt_key, completion_key = self.config.prompt_key, self.config.completion_key
        held = [key for key in (prompt_key, completion_key) if holds_messages(value.get(key))]
        if held:
            keys = " and ".join(map(repr, held))
            verb = "contain" if len(held) > 1 else "contains"
            forward = "use kind: chat to read them"
            if (prompt_key, completion_key) != ("prompt", "completion"):
                forward = "rename the keys to prompt and completion, and use kind: chat to read them"
            raise BrokenExample(f"{keys} {verb} messages, not text; {forward}")
        prompt = text_of(value, prompt_key, kind=self.kind)
        example = joined([(prompt, False), (answer_of(value, completion_key, kind=self.kind), True)])
        self.keys.note_unread(value, (prompt_key, completion_key), notes)
        return example
