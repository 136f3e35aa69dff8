"""Pairs of answers to one prompt, of which one was preferred.

    {"prompt", "chosen", "rejected"}                    texts
    {"prompt": [...], "chosen": [...], "rejected": [...]}    messages: what was asked, and two continuations
    {"chosen": [...], "rejected": [...]}                messages: two conversations with a common beginning

Messages are those of chat.py. What both conversations begin with is not learnt.
"""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources.chat import ChatReader, Node
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.json_line import keys_of, kind_of
from nbtrain.corpus.sources.record_files import RecordFileReader


class PreferenceReader(ChatReader):
    """A prompt with two answers; messages go through the template."""

    kind = "preference"

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        yield from RecordFileReader.pieces(self, path)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[Example | Preference]:
        yield from ExampleReader.read(self, part, tally)

    def example(self, value: dict[str, Any]) -> Preference:
        keys = self.config.chosen_key, self.config.rejected_key
        for key in keys:
            if value.get(key) is None:
                raise BrokenExample(f"no key {key!r} among {keys_of(value)}")
        both = [isinstance(value[key], list) for key in keys]
        if both[0] != both[1]:
            raise BrokenExample(
                f"{keys[0]!r} is {kind_of(value[keys[0]])} and {keys[1]!r} is {kind_of(value[keys[1]])}: "
                "both are text, or both are messages"
            )
        if value[keys[0]] == value[keys[1]]:
            raise BrokenExample(f"{keys[0]!r} and {keys[1]!r} are equal, so that neither is preferred")
        if both[0]:
            return self._of_messages(value)
        prompt = text_of(value, self.config.prompt_key)
        return Preference(*(joined([(prompt, False), (answer_of(value, key), True)]) for key in keys))

    def _of_messages(self, value: dict[str, Any]) -> Preference:
        key, keys = self.config.prompt_key, (self.config.chosen_key, self.config.rejected_key)
        chosen, rejected = value[keys[0]], value[keys[1]]
        prompt = value.get(key) or []
        if isinstance(prompt, str):
            # Beside whole conversations it repeats their question.
            prompt = [{"role": "user", "content": prompt}] if self._answers_first(chosen) else []
        if not isinstance(prompt, list):
            raise BrokenExample(f"{key!r} is neither text nor messages but {kind_of(prompt)}")
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
        num_shared = len(prompt) + sum(1 for _ in alike)
        examples = []
        for own, messages in zip(keys, (chosen, rejected), strict=True):
            nodes = [
                *(Node(message, f"{key}[{number}]", []) for number, message in enumerate(prompt)),
                *(Node(message, f"{own}[{number}]", []) for number, message in enumerate(messages)),
            ]
            example = self._conversation(nodes, num_shared)
            if example is None:
                learnt = ", ".join(sorted(self._learnt))
                raise BrokenExample(f"{own!r} holds no message of {learnt} that the other one has not")
            examples.append(example)
        return Preference(*examples)

    def _answers_first(self, messages: list[Any]) -> bool:
        first = messages[0] if messages else None
        found = (first.get("role") or first.get("from")) if isinstance(first, dict) else None
        return self._names.get(found, found) in self._learnt
