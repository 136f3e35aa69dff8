"""Parses the messages of a record in all their storage formats, and the spans and tool calls of a message.

messages            a list of objects, or of pairs {"human", "assistant"}; the same as JSON text; or
                    {"role": [...], "content": [...]}
history             [["question", "answer"], ...] -> messages
train_detail        [{begin_offset, end_offset, train}] -> spans of the content, in or outside the loss
tools, tool_calls   -> JSON, as Hugging Face's chat templates write it
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from nbtrain.corpus.files.json_line import kind_of
from nbtrain.corpus.sources.instructions import BrokenExample

ASSISTANT = "assistant"
# Keys of an object that holds a question and its answer.
PAIR_KEYS = (("human", "user", "query", "question"), ("assistant", "gpt", "bot", "response", "answer"))
SHOWN_CHARS = 40


def messages_of(value: Any, key: str) -> list[Any]:
    """Return the list of messages in a value of any supported format. Raises BrokenExample."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise BrokenExample(f"{key!r} is text but not valid JSON; store the messages as a list") from None
    if isinstance(value, dict) and value:
        if is_message(value):
            return [value]
        columns = {name: column for name, column in value.items() if column is not None}
        if all(isinstance(column, list) for column in columns.values()):
            if len({len(column) for column in columns.values()}) != 1:
                raise BrokenExample(f"{key!r} is an object whose lists have different lengths")
            return [dict(zip(columns, row)) for row in zip(*columns.values())]
    if not isinstance(value, list):
        raise BrokenExample(f"{key!r} is not a list but {kind_of(value)}")
    return [message for entry in value for message in _of_pair(entry)]


def holds_any_message(value: Any) -> bool:
    """Return whether a value holds messages in a supported format, at least one of them with a role."""
    try:
        return any(map(is_message, messages_of(value, "")))
    except BrokenExample:
        return False


def is_message(value: Any) -> bool:
    """Return whether a value is an object that has text under "role" or "from"."""
    return isinstance(value, dict) and any(isinstance(value.get(key), str) for key in ("role", "from"))


def _of_pair(entry: Any) -> list[Any]:
    """Return an entry as a list of messages: two for an object with a question and its answer, else one."""
    if isinstance(entry, dict) and entry.get("role") is None and entry.get("from") is None:
        found = [next((key for key in keys if key in entry), None) for keys in PAIR_KEYS]
        if None not in found:
            rest = {key: value for key, value in entry.items() if key not in found}
            question, answer = (entry[key] for key in found)
            return [{"role": "user", "content": question}, {"role": ASSISTANT, "content": answer, **rest}]
    return [entry]


def messages_or_text(value: dict[str, Any], key: str, role: str) -> list[Any]:
    """Return the messages under a key. Text other than messages as JSON becomes one message with `role`."""
    if isinstance(value[key], str) and not holds_messages(value[key]):
        return [{"role": role, "content": value[key]}]
    return messages_of(value[key], key)


def holds_messages(value: Any) -> bool:
    """Return whether a value is a list of messages or a single message, possibly as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
    if isinstance(value, list):
        return bool(value) and all(map(is_message, value))
    return is_message(value)


def earlier_messages(value: Any, key: str) -> list[Any]:
    """Return earlier questions and answers as messages.

    Each entry of `value` is a pair of texts, a message, or an object with a question and its answer. Raises
    BrokenExample for other entries.
    """
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = None
    messages: list[Any] = []
    for pair in value if isinstance(value, list) else [None]:
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
            messages += [{"role": "user", "content": pair[0]}, {"role": ASSISTANT, "content": pair[1]}]
        elif isinstance(pair, dict):
            messages += _of_pair(pair)
        else:
            raise BrokenExample(f"{key!r} is not a list of pairs [question, answer]")
    return messages


def spans_of(content: str, details: Any, place: str) -> list[tuple[str, bool]]:
    """Split the content at the spans in `details`, into (text, whether it is in the loss).

    A span includes the character at end_offset. Text outside all spans is not in the loss. Raises
    BrokenExample if the spans are not in ascending order or do not fit the content.
    """
    rule = (
        "spans are {begin_offset, end_offset, train} in ascending order, counted in characters, with "
        "end_offset included"
    )
    if not isinstance(details, list):
        raise BrokenExample(f"{place} is not a list; {rule}")
    pieces: list[tuple[str, bool]] = []
    end = 0
    for number, span in enumerate(details):
        first, last, is_learnt = _span(span)
        if not end <= first <= last < len(content):
            raise BrokenExample(
                f"{place}[{number}] = {str(span)[: 2 * SHOWN_CHARS]} does not fit the content of "
                f"{len(content):,} characters; {rule}"
            )
        pieces += [(content[end:first], False), (content[first : last + 1], is_learnt)]
        end = last + 1
    return [piece for piece in (*pieces, (content[end:], False)) if piece[0]]


def _span(span: Any) -> tuple[int, int, bool]:
    """Return a span as (first character, last character, whether in the loss); (-1, -1, False) if invalid."""
    match span:
        case {"begin_offset": int(first), "end_offset": int(last), "train": bool(is_learnt)}:
            return first, last, is_learnt
    return -1, -1, False


def _parsed(value: Any, place: str) -> Any:
    """Parse a value that may be JSON text. Raises BrokenExample if it is text but not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BrokenExample(f"{place} is text but not valid JSON ({error.msg})") from None


def tool_lines(value: Any, key: str) -> str:
    """Return the tools as text, each as JSON on a separate line. Raises BrokenExample."""
    value = _parsed(value, repr(key))
    tools = value if isinstance(value, list) else [value]
    return "\n".join(tool if isinstance(tool, str) else _json(tool) for tool in tools)


def tool_calls(message: dict[str, Any], keys: Sequence[str], place: str) -> list[str]:
    """Return each call under `keys` as a JSON object with a name and arguments. Raises BrokenExample.

    Arguments that are already JSON text are kept unchanged.
    """
    texts = []
    for key in keys:
        value = _parsed(message[key], f"{place}.{key}")
        for number, call in enumerate(value if isinstance(value, list) else [value]):
            where = f"{place}.{key}[{number}]"
            call = _parsed(call, where)
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise BrokenExample(f"{where} has no function name")
            arguments = function.get("arguments")
            if isinstance(arguments, str) and arguments.strip():
                _parsed(arguments, f"{where}.arguments")
            else:
                arguments = _json(arguments or {})
            texts.append(f'{{"name": {_json(function["name"])}, "arguments": {arguments}}}')
    return texts


def _json(value: Any) -> str:
    """Return a value as JSON in the format of Hugging Face's chat templates."""
    return json.dumps(value, ensure_ascii=False)
