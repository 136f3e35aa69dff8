"""Reads conversations in the formats in which they are published; the assistant's messages are in the loss.

    {"messages": [{"role", "content"}, ...]}               a conversation, in any format of messages.py
    {"conversations": [{"from", "value"}, ...]}            ShareGPT's format
    {"prompt": [...], "completion": [...]}                 messages outside, then messages in the loss
    {"instruction", "input", "output", "history"}          a question and its answer, after earlier pairs
    {"prompt": {"role", "text", "replies": [...]}}         an OpenAssistant message tree
    {"message_id", "parent_id", "role", "text"}            one message of such a tree, in adjacent rows

    record -> turns (role, content, loss mark stored in the data) -> pieces (text, whether it is in the loss)

A record's `system` and `tools` are placed at the start of the conversation. In a message tree, each path from
the root to a leaf is a conversation. Each answer is in the loss exactly once: messages that a path shares
with the previous path are outside the loss.
"""

import json
import re
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from nbtrain.base.workspace import display
from nbtrain.corpus.files.json_line import keys_of, kind_of
from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.keys import (
    ANSWER_NAMES,
    CALL_NAMES,
    CONTENT_NAMES,
    EARLIER_TURNS,
    MARKS,
    MASKED,
    MESSAGES_NAMES,
    QUESTION_NAMES,
    REASONING_NAMES,
    SPANS,
    SYSTEM_NAMES,
    TOOLS,
    KeyPolicy,
    RecordNotes,
    RefusedKeys,
    holds_value,
    message_policy,
    names_tools,
)
from nbtrain.corpus.sources.messages import (
    ASSISTANT,
    SHOWN_CHARS,
    earlier_messages,
    messages_of,
    messages_or_text,
    spans_of,
    tool_calls,
    tool_lines,
)
from nbtrain.corpus.sources.parquet import OpenParquet, is_parquet
from nbtrain.corpus.sources.record_files import Row
from nbtrain.corpus.sources.shapes import way_forward
from nbtrain.corpus.sources.templates import Template

ROLES = ("system", "developer", "user", ASSISTANT, "tool")
# Names of roles in ShareGPT exports and OpenAssistant. A source can add others in its setting `roles`.
OTHER_NAMES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
}
MESSAGE_KEYS = ("message_id", "parent_id", "role")  # keys of a row that is one message of a tree
VALUE_NAMES = ("value", "content")  # keys of a message whose role is under "from"
TREE_KEYS = ("message_id", "parent_id", "message_tree_id", "deleted", "replies")
UNANSWERED = "unanswered"
"""Reason for dropping a tree that has no answer in the loss."""
DELETED = "deleted_message"
"""Reason for dropping a message that is marked as deleted."""


def learnt_roles(source: Any) -> list[str]:
    """Return the roles whose messages are in a source's loss, spelled as in its template."""
    names = {**OTHER_NAMES, **source.roles}
    return list(dict.fromkeys(names.get(role, role) for role in source.learn_roles))


def known_roles(source: Any) -> list[str]:
    """Return all roles that messages of a source may have."""
    return list(dict.fromkeys((*ROLES, *learnt_roles(source), *source.roles.values())))


def answering_role(learnt: Sequence[str]) -> str:
    """Return the role in which the model answers, one of the roles whose messages are in the loss.

    It is "assistant" if possible, otherwise the first of these roles.
    """
    return ASSISTANT if ASSISTANT in learnt else learnt[0]


class Node(NamedTuple):
    """A message of a tree, its location for error messages, and its replies."""

    message: dict[str, Any]
    place: str
    replies: list["Node"]


class Turn(NamedTuple):
    """A message in the form in which the template renders it, whatever format the data has."""

    role: str
    content: str
    mark: bool | None = None
    """Whether the data marks the message as in the loss; None without a mark, so that learn_roles decides."""
    spans: tuple[tuple[str, bool], ...] = ()
    """Spans of the content as (text, whether it is in the loss); empty if the data marks no spans."""


class ChatReader(ExampleReader):
    """Renders messages in order with the template, and drops any text after the last piece in the loss."""

    kind = "chat"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        header, _, rest = self.config.template.partition("{content}")
        self._header, self._rest = (Template(text, ("role", "content")) for text in (header, rest))
        self._around: dict[str, tuple[str, str]] = {}
        self._names = {**OTHER_NAMES, **self.config.roles}
        self._learnt = {*learnt_roles(self.config)}
        self._roles = {*known_roles(self.config)}
        self._tools = _template(self.config.tools_template, "tools")
        self._tool_call = _template(self.config.tool_call_template, "tool_call")
        self._reasoning = _template(self.config.reasoning_template, "reasoning")
        self._system_names = self.keys.readable(SYSTEM_NAMES)
        self._tools_names = self.keys.readable(TOOLS.names) if self._tools else ()

    @cached_property
    def message_keys(self) -> KeyPolicy:
        """Rules for the keys of a message."""
        return message_policy(self.config)

    def is_read(self, column: str) -> bool:
        # A column may also be a key of a message, because each row of a tree is one message.
        return super().is_read(column) or not self.message_keys.is_counted(column)

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        if self._is_flat(path):
            # A part that ends inside a tree would split its conversations, so a file is one part.
            yield SourcePart(display(path), size_bytes=path.stat().st_size, details=(str(path),))
        else:
            yield from super().pieces(path)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[Example | Preference]:
        for (path, tree), rows in groupby(self.rows(part, tally), key=self._tree_of):
            if tree is not None:
                yield from self._tree(_linked(list(rows), tally), path, tally)
                continue
            for row in rows:
                if self.config.messages_key is None and isinstance(row.record.get("prompt"), dict):
                    notes = RecordNotes()
                    self.keys.note_unread(row.record, ("prompt", *TREE_KEYS), notes)
                    root = _nested(row, tally)
                    yield from self._tree([root] if root else [], path, tally, row.number, notes)
                elif (example := self.checked(row.record, path, row.number, tally)) is not None:
                    yield example

    def example(self, value: dict[str, Any], notes: RecordNotes) -> Example | Preference | None:
        messages, num_shared, read = self._messages(value)
        turns = self._turns(messages, notes)
        num_opening = len(turns)
        turns = self._opened(turns, value, read)
        num_opening = len(turns) - num_opening
        self.keys.note_unread(value, read, notes)
        example = self._example(turns, num_shared + num_opening if num_shared else 0)
        if example is None and not notes.refused:
            if any(turn.mark is False or turn.spans for turn in turns):
                return None
            roles = " or ".join(sorted(self._learnt))
            raise BrokenExample(f"{read[0]!r} contains no message with the role {roles}")
        return example

    def _tree(
        self,
        roots: "list[Node | BrokenExample]",
        path: str,
        tally: Tally,
        line: int | None = None,
        notes: RecordNotes | None = None,
    ) -> Iterator[Example]:
        """Yield the conversations of a tree.

        If some conversations are broken, the others are still yielded. Only the first problem is reported.
        """
        problem: tuple[int | None, str] | None = None
        has_answer = False
        notes = notes or RecordNotes()
        for root in roots:
            if isinstance(root, BrokenExample):
                problem = problem or (line, str(root))
                continue
            for thread, num_shared in threads(root):
                try:
                    own = RecordNotes(notes.unread, dict(notes.refused))
                    example = self._example(self._turns(thread, own), num_shared)
                    own.check(self.kind)
                except (BrokenExample, RefusedKeys) as error:
                    problem = problem or (line, str(error))
                    continue
                if example is not None:
                    has_answer = True
                    yield example
        if has_answer:
            tally.add_unread(notes.unread)
        if problem is not None:
            tally.add_broken(path, *problem)
        elif not has_answer:
            tally.dropped[UNANSWERED] += 1

    def _example(self, turns: Sequence[Turn], num_shared: int = 0) -> Example | None:
        """Build an example from turns; return None if nothing is in the loss.

        The first `num_shared` turns are outside the loss.
        """
        pieces: list[tuple[str, bool]] = []
        end = 0
        for number, (role, content, mark, spans) in enumerate(turns):
            before, after = self._around.get(role) or self._template_around(role, content)
            pieces.append((before, False))
            bears_loss = number >= num_shared and (role in self._learnt if mark is None else mark)
            if spans:
                is_open = number >= num_shared and mark is not False
                pieces += [(text, is_open and is_learnt) for text, is_learnt in spans]
                pieces.append((after, pieces[-1][1]))
                end = max([end, *(place for place, piece in enumerate(pieces, 1) if piece[1])])
                continue
            pieces.append((content + after, bears_loss))
            if bears_loss:
                end = len(pieces)
        return joined(pieces[:end]) if end else None

    def _template_around(self, role: str, content: str) -> tuple[str, str]:
        """Return the template's text before and after the content of a message."""
        values = {"role": role, "content": content}
        around = self._header.render(values), self._rest.render(values)
        if "content" not in self._rest.fields:
            self._around[role] = around
        return around

    def _messages(self, value: dict[str, Any]) -> tuple[list[Node], int, list[str]]:
        """Return (messages of a record, number of messages at the start outside the loss, keys read)."""
        wanted = (self.config.messages_key,) if self.config.messages_key else MESSAGES_NAMES
        for key in wanted:
            # A Parquet file made from several datasets may have several of these columns; in each row, only
            # one of them is not null.
            if value.get(key) is not None:
                return nodes_of(messages_of(value[key], key), key), 0, [key]
        if self.config.messages_key is None:
            if holds_value(value.get("prompt")) and holds_value(value.get("completion")):
                prompt = nodes_of(messages_or_text(value, "prompt", "user"), "prompt")
                completion = nodes_of(messages_or_text(value, "completion", ASSISTANT), "completion")
                return prompt + completion, len(prompt), ["prompt", "completion"]
            question = next((name for name in QUESTION_NAMES if holds_value(value.get(name))), None)
            answer = next((name for name in ANSWER_NAMES if holds_value(value.get(name))), None)
            if question and answer:
                return self._question(value, question, answer)
        names = " or ".join(map(repr, wanted[:2]))
        raise BrokenExample(f"no key {names} among {keys_of(value)}{way_forward(value, self.kind)}")

    def _question(
        self, value: dict[str, Any], question: str, answer: str
    ) -> tuple[list[Node], int, list[str]]:
        """Return the messages of a question and its answer, after the earlier messages of its history."""
        read, earlier = [question, answer], []
        asked = answer_of(value, question)
        for key in self.keys.readable(("input",)):
            if holds_value(value.get(key)):
                asked += f"\n{text_of(value, key)}"
                read.append(key)
        for key in self.keys.readable(EARLIER_TURNS.names):
            if holds_value(value.get(key)):
                earlier += nodes_of(earlier_messages(value[key], key), key)
                read.append(key)
        own = [
            Node({"role": "user", "content": asked}, question, []),
            Node({"role": ASSISTANT, "content": text_of(value, answer)}, answer, []),
        ]
        return [*earlier, *own], 0, read

    def _opened(self, turns: list[Turn], value: dict[str, Any], read: list[str]) -> list[Turn]:
        """Return the turns, preceded by the record's system message and tools.

        Adds the keys of the system message and the tools to `read`.
        """
        role = self._names.get("system", "system")
        first = turns[0] if turns and turns[0].role == role else None
        said = "" if first is None else first.content
        for key in self._system_names:
            if key in value and holds_value(value[key]) and said in ("", text_of(value, key)):
                said = text_of(value, key)
                read.append(key)
        for key in self._tools_names:
            if key in value and names_tools(value[key]):
                assert self._tools is not None
                tools = self._tools.render({"tools": tool_lines(value[key], key)})
                said = f"{said}\n\n{tools}" if said else tools
                read.append(key)
        if first is None:
            return [Turn(role, said), *turns] if said else turns
        # Spans are offsets into the message without the tools, so they are invalid once tools are added.
        return turns if said == first.content else [Turn(role, said, first.mark), *turns[1:]]

    def _turns(self, messages: list[Node], notes: RecordNotes, last: str = "") -> list[Turn]:
        """Convert messages to turns; `last` is the role of the message before them. Raises BrokenExample."""
        turns: list[Turn] = []
        for message, place, _ in messages:
            turns.append(self._turn(message, place, last, notes))
            last = turns[-1].role
        return turns

    def _turn(self, message: Any, place: str, last: str, notes: RecordNotes) -> Turn:
        """Convert a message to a turn; `last` is the previous message's role. Raises BrokenExample."""
        # Nearly all messages have this form.
        if type(message) is dict and len(message) == 2:
            name, content = message.get("role"), message.get("content")
            if type(name) is str and type(content) is str:
                role = self._names.get(name, name)
                if role in self._roles and (role not in self._learnt or (content and not content.isspace())):
                    return Turn(role, content)
        if not isinstance(message, dict):
            raise BrokenExample(f"{place} is not an object but {kind_of(message)}")
        role_key, names = (
            ("role", CONTENT_NAMES) if message.get("role") is not None else ("from", VALUE_NAMES)
        )
        if message.get(role_key) is None:
            raise BrokenExample(f"{place} has neither 'role' nor 'from' among {keys_of(message)}")
        content_key = next((name for name in names if message.get(name) is not None), "")
        if not content_key:
            content_key = next((name for name in names if name in message), names[0])
        name = text_of(message, role_key, place)
        role = self._names.get(name, name)
        if role not in self._roles:
            raise BrokenExample(f"{place}.{role_key} = {name[:SHOWN_CHARS]!r}, {self._advice(name, last)}")
        if len(message) == 2 and isinstance(message.get(content_key), str):
            text = (answer_of if role in self._learnt else text_of)(message, content_key, place)
            return Turn(role, text)
        return self._with_more(message, place, role, role_key, content_key, notes)

    def _with_more(
        self,
        message: dict[str, Any],
        place: str,
        role: str,
        role_key: str,
        content_key: str,
        notes: RecordNotes,
    ) -> Turn:
        """Convert a message that has further keys besides its role and content to a turn."""
        keys, read = self.message_keys, [role_key, content_key, *TREE_KEYS]

        def look_at_part(part: dict[str, Any], own: Container[str], where: str) -> None:
            keys.note_unread(part, own, notes, where)

        held = {key for key, value in message.items() if holds_value(value)}
        calls = [key for key in keys.readable(CALL_NAMES) if key in held and names_tools(message[key])]
        has_no_text = message.get(content_key) is None and not held.isdisjoint(CALL_NAMES)
        content = "" if has_no_text else text_of(message, content_key, place, look=look_at_part)
        mark = self._mark(message, place, read)
        spans: list[tuple[str, bool]] = []
        for key in keys.readable(SPANS):
            if key in held and not spans:
                spans = spans_of(content, message[key], f"{place}.{key}")
                read.append(key)
        before = after = ""
        thoughts = [key for key in keys.readable(REASONING_NAMES) if key in held]
        if self._reasoning and thoughts:
            before = self._reasoning.render({"reasoning": text_of(message, thoughts[0], place)})
            read.append(thoughts[0])
        if self._tool_call and calls:
            texts = [
                self._tool_call.render({"tool_call": call}) for call in tool_calls(message, calls, place)
            ]
            after = "\n".join(["", *texts] if content else texts)
            read += calls
        keys.note_unread(message, read, notes, place)
        said = before + content + after
        bears_loss = role in self._learnt if mark is None else mark
        if bears_loss and not said.strip() and not notes.refused:
            raise BrokenExample(f"{place}.{content_key} is empty")
        if spans:
            spans = [(before, mark is not False), *spans, (after, mark is not False)]
        return Turn(role, said, mark, tuple(span for span in spans if span[0]))

    def _mark(self, message: dict[str, Any], place: str, read: list[str]) -> bool | None:
        """Return whether the data marks a message as in the loss; None if it has no mark.

        Adds the keys of the marks to `read`. Raises BrokenExample if a mark is not 0, 1, true or false.
        """
        mark = None
        for key in self.message_keys.readable((*MARKS, MASKED)):
            value = message.get(key)
            if not holds_value(value):
                continue
            if not isinstance(value, bool | int | float) or value not in (0, 1):
                raise BrokenExample(
                    f"{place}.{key} = {str(value)[:SHOWN_CHARS]} must be 0, 1, true or false: a message is "
                    "either in the loss or not, and other weights are not supported"
                )
            mark = value == (0 if key == MASKED else 1) and mark is not False
            read.append(key)
        return mark

    def _advice(self, found: str, last: str) -> str:
        """Return the fix for an unknown role; a message after a user's is most likely the assistant's."""
        likely = "assistant" if last == "user" else "user"
        known = {**self.config.roles, found[:SHOWN_CHARS]: likely}
        line = ", ".join(f"{_yaml(name)}: {_yaml(role)}" for name, role in known.items())
        return (
            f"which is not a known role ({', '.join(sorted({*self._roles, *self._names}))}). If it means the "
            f"{likely}, add to this source: roles: {{{line}}}"
        )

    def _tree_of(self, row: Row) -> tuple[str, str | None]:
        """Return (file, id of the row's message tree); the id is None for a row that is not in a tree."""
        if self.config.messages_key is not None or not _is_message(row.record):
            return row.path, None
        return row.path, str(row.record.get("message_tree_id", "one tree"))

    def _is_flat(self, path: Path) -> bool:
        """Return whether each row of a file is one message of a tree, judging by columns or first line."""
        if is_parquet(path):
            with OpenParquet(path, self.where) as file:
                return set(MESSAGE_KEYS) <= set(file.schema.names)
        with self.open_file(path) as stream:
            line = next((line for line in stream if line.strip()), b"null")
        with suppress(orjson.JSONDecodeError):
            return _is_message(orjson.loads(line))
        return False


def nodes_of(messages: list[Any], key: str) -> list[Node]:
    return [Node(message, f"{key}[{number}]", []) for number, message in enumerate(messages)]


def _template(text: str | None, name: str) -> Template | None:
    return None if text is None else Template(text, (name,))


def threads(root: Node) -> Iterator[tuple[list[Node], int]]:
    """Yield (messages, number of messages shared with the previous path) for each path from root to leaf.

    The shared messages are the first ones of a path.
    """
    path: list[Node] = []
    num_shared = 0
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        num_shared = min(num_shared, depth)
        del path[depth:]
        path.append(node)
        if node.replies:
            waiting += [(reply, depth + 1) for reply in reversed(node.replies)]
            continue
        yield list(path), num_shared
        num_shared = len(path)


def _is_message(record: Any) -> bool:
    return isinstance(record, dict) and all(key in record for key in MESSAGE_KEYS)


def _linked(rows: list[Row], tally: Tally) -> "list[Node | BrokenExample]":
    """Link rows that are messages into trees and return the roots.

    A row whose parent is missing becomes a BrokenExample among the roots.
    """
    nodes = {str(row.record["message_id"]): Node(row.record, f"row {row.number}", []) for row in rows}
    roots: list[Node | BrokenExample] = []
    for row in rows:
        parent = row.record["parent_id"]
        if row.record.get("deleted") is True:
            tally.dropped[DELETED] += 1
        elif parent is None:
            roots.append(nodes[str(row.record["message_id"])])
        elif str(parent) not in nodes:
            what = (
                f"row {row.number}: parent_id is {str(parent)[:SHOWN_CHARS]!r}, but no row of the same "
                "tree has this message_id"
            )
            rule = "the rows of a tree must be adjacent: sort the file by message_tree_id"
            roots.append(BrokenExample(f"{what}; {rule}"))
        else:
            nodes[str(parent)].replies.append(nodes[str(row.record["message_id"])])
    return roots


def _nested(row: Row, tally: Tally) -> "Node | BrokenExample | None":
    """Return the root of a message tree stored under `prompt`; None if the root is marked as deleted."""
    top = Node({}, "", [])
    waiting: list[tuple[Any, str, Node]] = [(row.record["prompt"], "prompt", top)]
    while waiting:
        message, place, parent = waiting.pop()
        if isinstance(message, dict) and message.get("deleted") is True:
            tally.dropped[DELETED] += 1
            continue
        node = Node(message, place, [])
        parent.replies.append(node)
        replies = (message.get("replies") if isinstance(message, dict) else None) or []
        if not isinstance(replies, list):
            return BrokenExample(f"{place}.replies is not a list but {kind_of(replies)}")
        # Reversed, because pop() takes entries from the end.
        waiting += reversed([(reply, f"{place}.replies[{n}]", node) for n, reply in enumerate(replies)])
    return top.replies[0] if top.replies else None


def _yaml(name: str) -> str:
    """Return a name as a YAML key or value, quoted if YAML could read it as something else."""
    plain = "(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z_][A-Za-z0-9_-]*"
    return name if re.fullmatch(plain, name) else json.dumps(name)
