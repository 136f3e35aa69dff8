"""Lists known record formats: the keys of the records, and the kind of source that reads them.

way_forward() recognizes a format to give advice in error messages. record_kind.py uses the same list to
choose a source for a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nbtrain.config.sections.sources import TEXT_KINDS
from nbtrain.corpus.sources.keys import MESSAGES_NAMES, holds_value, letters_of


@dataclass(frozen=True)
class Shape:
    """A record format: the kind of source that reads it, and the keys that each record must have."""

    kind: str
    keys: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the source that differ from their defaults."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Additional settings as {setting: key}, each applied only if the record has the key."""
    is_loose: bool = False
    """Whether the keys commonly mean other things too: "source" may name where a text comes from."""

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has a value under each of the keys."""
        return all(holds_value(record.get(key)) for key in self.keys)

    def advice(self, record: Mapping[str, Any], kind: str) -> str:
        """Return advice for a source of `kind` that received a record of this format.

        The result is "" if the kind fits and no setting has to be added.
        """
        optional = {name: key for name, key in self.optional.items() if key in record}
        lines = ", ".join(f"{name}: {key}" for name, key in {**self.settings, **optional}.items())
        if self.kind == kind:
            return f"add to this source: {lines}" if lines else ""
        return f"such records are read by kind: {self.kind}{f' with {lines}' if lines else ''}"


def _pair(prompt: str, completion: str) -> Shape:
    keys = {"prompt": prompt, "completion": completion}
    settings = {f"{name}_key": key for name, key in keys.items() if key != name}
    return Shape("prompt-completion", (prompt, completion), settings)


def _preference(chosen: str, rejected: str, is_loose: bool = False, **optional: str) -> Shape:
    settings = {"chosen_key": chosen, "rejected_key": rejected}
    return Shape("preference", (chosen, rejected), settings, optional, is_loose)


def _alpaca(answer: str) -> Shape:
    return Shape("alpaca", ("instruction", answer), {"output_key": answer}, {"input_key": "context"})


# In the order in which record_kind.py tries them: if records match several shapes, the first match is used.
SHAPES = (
    *(Shape("chat", (key,)) for key in MESSAGES_NAMES),
    Shape("preference", ("chosen", "rejected")),
    Shape("alpaca", ("instruction", "output")),
    *(_pair("prompt", answer) for answer in ("completion", "response")),
    *(_pair("question", answer) for answer in ("answer", "response")),
    *(_pair("query", answer) for answer in ("response", "answer")),
    *(_alpaca(answer) for answer in ("response", "answer")),
    *(_pair(*keys) for keys in (("problem", "solution"), ("input", "output"))),
    Shape("tokens", ("input_ids",), {}, {"labels_key": "labels"}),
    _preference("preferred_output", "non_preferred_output", prompt_key="input"),
    *(
        _preference(*keys)
        for keys in (
            ("chosen_response", "rejected_response"),
            ("response_chosen", "response_rejected"),
            ("chosen_answer", "rejected_answer"),
            ("response_j", "response_k"),
        )
    ),
    _alpaca("completion"),
    Shape(
        "alpaca", ("INSTRUCTION", "RESPONSE"), {"instruction_key": "INSTRUCTION", "output_key": "RESPONSE"}
    ),
    *(_pair("prompt", answer) for answer in ("answer", "output", "generation")),
    *(_pair("question", answer) for answer in ("solution", "output")),
    _pair("query", "output"),
    *(_pair("problem", answer) for answer in ("answer", "generated_solution")),
    Shape("jsonl", ("text",)),
    *(_pair(*keys) for keys in (("article", "summary"), ("document", "summary"))),
    *(
        Shape("jsonl", (key,), {"text_key": key})
        for key in ("content", "body", "document", "article", "raw_content", "story", "passage", "code")
    ),
    *(
        Shape("chat", (key,), {"messages_key": key})
        for key in ("dialog", "dialogue", "turns", "chat", "items")
    ),
    *(
        _preference(*keys, is_loose=True)
        for keys in (("accepted", "rejected"), ("preferred", "dispreferred"), ("winner", "loser"))
    ),
    *(replace(_pair(*keys), is_loose=True) for keys in (("inputs", "targets"), ("source", "target"))),
    *(Shape("tokens", (key,), {"input_ids_key": key}, {}, key == "ids") for key in ("token_ids", "ids")),
)
# {kind: {default key: the setting that names another key instead}}
SETTINGS = {
    "alpaca": {"instruction": "instruction_key", "output": "output_key", "input": "input_key"},
    "prompt-completion": {"prompt": "prompt_key", "completion": "completion_key"},
    "preference": {"prompt": "prompt_key", "chosen": "chosen_key", "rejected": "rejected_key"},
    "chat": dict.fromkeys(MESSAGES_NAMES, "messages_key"),
    "tokens": {"input_ids": "input_ids_key"},
    "jsonl": {"text": "text_key"},
}


def way_forward(record: Mapping[str, Any], kind: str) -> str:
    """Return advice on a record that a source of `kind` cannot read, as "; ..."; "" if no shape matches."""
    own = "jsonl" if kind in TEXT_KINDS else kind
    fitting = [shape for shape in SHAPES if shape.fits(record)]
    for shape in sorted(fitting, key=lambda shape: shape.kind != own):
        if advice := shape.advice(record, own):
            is_folder = kind == "hf-dataset" and shape.kind != own
            return f"; {advice}{', after exporting the dataset with to_parquet()' if is_folder else ''}"
    return "" if fitting else _other_spelling(record, own)


def _other_spelling(record: Mapping[str, Any], own: str) -> str:
    """Return way_forward()'s advice for a record whose keys differ from a shape's only in their spelling.

    An example is "Instruction" instead of "instruction".
    """
    names = {letters_of(name): name for name, value in record.items() if holds_value(value)}
    fitting = [shape for shape in SHAPES if all(letters_of(key) in names for key in shape.keys)]
    for shape in sorted(fitting, key=lambda shape: shape.kind != own):
        settings = {
            setting: names[letters_of(key)]
            for key, setting in SETTINGS[shape.kind].items()
            if letters_of(key) in names
        }
        if settings and not shape.settings:
            return f"; {Shape(shape.kind, (), settings).advice(record, own)}"
    return ""
