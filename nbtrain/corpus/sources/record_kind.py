"""Chooses the kind of source for some records by their keys and the values of those keys.

messages, conversations, prompt {role, text, replies}, message_id + parent_id    chat
chosen + rejected                                                                preference
instruction + output                                                             alpaca
prompt + completion, question + answer, instruction + response, ...              prompt-completion
input_ids                                                                        tokens
text, content, ... or the key with the longest texts                             jsonl, parquet, hf-dataset
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nbtrain.corpus.files.file_kinds import COLUMNS, suffix_of
from nbtrain.corpus.files.json_line import record_of
from nbtrain.corpus.sources.json_array import open_records
from nbtrain.corpus.sources.keys import MESSAGES_NAMES
from nbtrain.corpus.sources.parquet import OpenParquet

LOOKED_AT_RECORDS = 200

# Keys of a question and its answer in public datasets.
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "response"),
    ("instruction", "answer"),
    ("problem", "solution"),
    ("input", "output"),
)
# Keys whose text belongs to the prompt: a pair with one of them is more than a prompt and a completion.
FURTHER = ("context", "input", "history", "system", "system_prompt")
TEXT_KEYS = ("text", "content", "body", "document", "article", "raw_content", "story", "passage", "code")
# Least share of the records that have a key, and that hold the expected kind of value under it.
USUAL_SHARE = 0.9


def source_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the source settings that read some records: "kind", and keys that differ from the kind's
    defaults.

    The kind of plain text is "jsonl", whatever file the records are from. None if no kind fits.
    """
    if not records:
        return None
    if any(_share(records, key, _is_messages) >= USUAL_SHARE for key in MESSAGES_NAMES):
        key = next(key for key in MESSAGES_NAMES if _share(records, key, _is_messages) >= USUAL_SHARE)
        return {"kind": "chat"} | ({"messages_key": key} if key == "conversation" else {})
    if _share(records, "prompt", _is_tree) >= USUAL_SHARE or _all_have(records, "message_id", "parent_id"):
        return {"kind": "chat"}
    if _all_have(records, "chosen", "rejected"):
        return {"kind": "preference"}
    if _all_have(records, "instruction", "output"):
        return {"kind": "alpaca"}
    for prompt, completion in PAIRS:
        if min(_share(records, key, _is_text) for key in (prompt, completion)) >= USUAL_SHARE:
            others = [key for key in FURTHER if key not in (prompt, completion)]
            if any(_share(records, key, _is_filled) for key in others):
                return None
            keys = {"prompt_key": prompt, "completion_key": completion}
            defaults = {"prompt_key": "prompt", "completion_key": "completion"}
            return {"kind": "prompt-completion"} | {
                name: key for name, key in keys.items() if key != defaults[name]
            }
    if _share(records, "input_ids", _is_ids) >= USUAL_SHARE:
        labels = {"labels_key": "labels"} if _share(records, "labels", _is_ids) >= USUAL_SHARE else {}
        return {"kind": "tokens"} | labels
    found = text_key(records)
    return None if found is None else {"kind": "jsonl"} | ({} if found == "text" else {"text_key": found})


def first_records(path: Path, where: str = "--text") -> list[dict[str, Any]]:
    """Return the first records of a .jsonl, .json or .parquet file; broken records are skipped."""
    if suffix_of(path.name) in COLUMNS:
        with OpenParquet(path, where) as file:
            batches = islice(file.batches(None, 0, 1), 1)
            return [row for batch in batches for row in batch.slice(0, LOOKED_AT_RECORDS).to_pylist()]
    records = []
    with open_records(path, where) as lines:
        for line in islice(lines, LOOKED_AT_RECORDS):
            if not line.isspace():
                try:
                    records.append(record_of(line))
                except ValueError:
                    continue
    return records


def text_key(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the key that holds the documents: a usual name, otherwise the one with the longest texts."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    texts = [key for key in keys if _share(records, key, lambda value: isinstance(value, str)) >= USUAL_SHARE]
    usual = [key for key in TEXT_KEYS if key in texts]
    if usual or not texts:
        return usual[0] if usual else None
    return max(texts, key=lambda key: sum(len(record.get(key) or "") for record in records))


def _share(records: Sequence[Mapping[str, Any]], key: str, holds: Any) -> float:
    return sum(1 for record in records if key in record and holds(record[key])) / len(records)


def _all_have(records: Sequence[Mapping[str, Any]], *keys: str) -> bool:
    return sum(1 for record in records if all(key in record for key in keys)) >= USUAL_SHARE * len(records)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(message, Mapping) and {"role", "from"} & message.keys() for message in value
    )


def _is_tree(value: Any) -> bool:
    return isinstance(value, Mapping) and "replies" in value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_filled(value: Any) -> bool:
    return bool(value) and not (isinstance(value, str) and value.isspace())


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value[:16])
