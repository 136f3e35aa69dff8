"""Conversations of which the answers are learnt, in the shapes that they are published in.

    {"messages": [{"role", "content"}, ...]}               a conversation
    {"conversations": [{"from", "value"}, ...]}            ShareGPT's
    {"prompt": {"role", "text", "replies": [...]}}         a tree of OpenAssistant
    {"message_id", "parent_id", "role", "text"}            a message of such a tree, whose rows must adjoin

Each path from the root of a tree to a leaf is a conversation. Each answer is learnt once: what a path shares
with the path before it is read and not learnt.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from nbtrain.base.workspace import display
from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.json_line import keys_of, kind_of
from nbtrain.corpus.sources.parquet import OpenParquet, is_parquet
from nbtrain.corpus.sources.record_files import Row
from nbtrain.corpus.sources.templates import Template

ASSISTANT = "assistant"
ROLES = ("system", "developer", "user", ASSISTANT, "tool")
# What ShareGPT's many exports and OpenAssistant call them; `roles` of a source adds others.
OTHER_NAMES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
}
MESSAGE_KEYS = ("message_id", "parent_id", "role")  # of a row that is one message of a tree
UNANSWERED = "unanswered"
"""The reasons for dropping a tree without a learnt answer, and a message that is marked as deleted."""
DELETED = "deleted_message"
SHOWN_CHARS = 40


def learnt_roles(source: Any) -> list[str]:
    """The roles that a source of conversations learns, as its template writes them."""
    names = {**OTHER_NAMES, **source.roles}
    return list(dict.fromkeys(names.get(role, role) for role in source.learn_roles))


def known_roles(source: Any) -> list[str]:
    """All roles that messages of a source may have."""
    return list(dict.fromkeys((*ROLES, *learnt_roles(source), *source.roles.values())))


def answering_role(learnt: Sequence[str]) -> str:
    """The role that a model is asked to speak as, of those that it has learnt."""
    return ASSISTANT if ASSISTANT in learnt else learnt[0]


class Node(NamedTuple):
    """A message of a tree, its place as errors name it, and its replies."""

    message: dict[str, Any]
    place: str
    replies: list["Node"]


class ChatReader(ExampleReader):
    """Messages in order, each through the template; what follows the last learnt message is left out."""

    kind = "chat"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        header, content, rest = self.config.template.partition("{content}")
        self._header, self._body = (Template(text, ("role", "content")) for text in (header, content + rest))
        self._names = {**OTHER_NAMES, **self.config.roles}
        self._learnt = {*learnt_roles(self.config)}
        self._roles = {*known_roles(self.config)}

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        if self._is_flat(path):
            # A part that ends inside a tree would cut its conversations, so a file is one part.
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
                    root = _nested(row, tally)
                    yield from self._tree([root] if root else [], path, tally, row.number)
                    continue
                try:
                    example = self.example(row.record)
                except BrokenExample as problem:
                    tally.add_broken(path, row.number, str(problem))
                    continue
                yield example

    def example(self, value: dict[str, Any]) -> Example | Preference:
        key = self._messages_key(value)
        messages = value[key]
        if not isinstance(messages, list):
            raise BrokenExample(f"{key!r} is not a list but {kind_of(messages)}")
        path = [Node(message, f"{key}[{number}]", []) for number, message in enumerate(messages)]
        example = self._conversation(path)
        if example is None:
            found = f"{len(messages):,} messages" if messages else "no message"
            raise BrokenExample(f"{key!r} holds {found}, none of {', '.join(sorted(self._learnt))}")
        return example

    def _tree(
        self, roots: "list[Node | BrokenExample]", path: str, tally: Tally, line: int | None = None
    ) -> Iterator[Example]:
        """The conversations of a tree; a broken tree gives those that are whole, and one problem."""
        problem: tuple[int | None, str] | None = None
        has_answer = False
        for root in roots:
            if isinstance(root, BrokenExample):
                problem = problem or (line, str(root))
                continue
            for thread, num_shared in threads(root):
                try:
                    example = self._conversation(thread, num_shared)
                except BrokenExample as error:
                    problem = problem or (line, str(error))
                    continue
                if example is not None:
                    has_answer = True
                    yield example
        if problem is not None:
            tally.add_broken(path, *problem)
        elif not has_answer:
            tally.dropped[UNANSWERED] += 1

    def _conversation(self, messages: list[Node], num_shared: int = 0) -> Example | None:
        """The example of some messages, the first `num_shared` not learnt; None if no message is learnt."""
        pieces: list[tuple[str, bool]] = []
        end, last = 0, ""
        for number, (message, place, _) in enumerate(messages):
            role, content = self._message(message, place, last)
            values = {"role": role, "content": content}
            is_learnt = role in self._learnt and number >= num_shared
            pieces += [(self._header.render(values), False), (self._body.render(values), is_learnt)]
            if is_learnt:
                end = len(pieces)
            last = role
        return joined(pieces[:end]) if end else None

    def _messages_key(self, value: dict[str, Any]) -> str:
        wanted = (self.config.messages_key,) if self.config.messages_key else ("messages", "conversations")
        for key in wanted:
            # A Parquet file of several datasets has both columns, one of them null.
            if value.get(key) is not None:
                return key
        raise BrokenExample(f"no key {' or '.join(map(repr, wanted))} among {keys_of(value)}")

    def _message(self, message: Any, place: str, last: str) -> tuple[str, str]:
        """(role, content) of a message that follows one of role `last`."""
        if not isinstance(message, dict):
            raise BrokenExample(f"{place} is not an object but {kind_of(message)}")
        role_key, content_key = ("role", "content") if message.get("role") is not None else ("from", "value")
        if message.get(role_key) is None:
            raise BrokenExample(f"{place} has neither 'role' nor 'from' among {keys_of(message)}")
        if role_key == "role" and "content" not in message and "text" in message:
            content_key = "text"
        found = text_of(message, role_key, place)
        role = self._names.get(found, found)
        if role not in self._roles:
            raise BrokenExample(f"{place}.{role_key} = {found[:SHOWN_CHARS]!r}, {self._advice(found, last)}")
        return role, (answer_of if role in self._learnt else text_of)(message, content_key, place)

    def _advice(self, found: str, last: str) -> str:
        """What to do about an unknown role. The message after a user's is most likely the assistant's."""
        likely = "assistant" if last == "user" else "user"
        known = {**self.config.roles, found[:SHOWN_CHARS]: likely}
        line = ", ".join(f"{_yaml(name)}: {_yaml(role)}" for name, role in known.items())
        return (
            f"which is no role that is known ({', '.join(sorted({*self._roles, *self._names}))}). If it is "
            f"the {likely}, add to this source: roles: {{{line}}}"
        )

    def _tree_of(self, row: Row) -> tuple[str, str | None]:
        """(file, id of the tree that the row is a message of; None if it is no message)."""
        if self.config.messages_key is not None or not _is_message(row.record):
            return row.path, None
        return row.path, str(row.record.get("message_tree_id", "one tree"))

    def _is_flat(self, path: Path) -> bool:
        """Whether the rows of a file are messages of trees, by its columns or its first line."""
        if is_parquet(path):
            with OpenParquet(path, self.where) as file:
                return set(MESSAGE_KEYS) <= set(file.schema.names)
        with self.open_file(path) as stream:
            line = next((line for line in stream if line.strip()), b"null")
        with suppress(orjson.JSONDecodeError):
            return _is_message(orjson.loads(line))
        return False


def threads(root: Node) -> Iterator[tuple[list[Node], int]]:
    """For each leaf, in order: (the messages from the root to it, how many are on the path before too)."""
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
    """The roots of rows that are messages. A row without its parent is broken, and its replies go with it."""
    nodes = {str(row.record["message_id"]): Node(row.record, f"row {row.number}", []) for row in rows}
    roots: list[Node | BrokenExample] = []
    for row in rows:
        parent = row.record["parent_id"]
        if row.record.get("deleted") is True:
            tally.dropped[DELETED] += 1
        elif parent is None:
            roots.append(nodes[str(row.record["message_id"])])
        elif str(parent) not in nodes:
            what = f"row {row.number}: its parent_id {str(parent)[:SHOWN_CHARS]!r} is not among the rows of"
            rule = "the rows of a tree must follow each other: sort the file by message_tree_id"
            roots.append(BrokenExample(f"{what} its tree; {rule}"))
        else:
            nodes[str(parent)].replies.append(nodes[str(row.record["message_id"])])
    return roots


def _nested(row: Row, tally: Tally) -> "Node | BrokenExample | None":
    """The root of a tree that is one record, under `prompt`; None if it is marked as deleted."""
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
        # The last first, for they are taken from the end.
        waiting += reversed([(reply, f"{place}.replies[{n}]", node) for n, reply in enumerate(replies)])
    return top.replies[0] if top.replies else None


def _yaml(name: str) -> str:
    """A name as a key or value of YAML; in quotes if it could be read as something else."""
    plain = "(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z_][A-Za-z0-9_-]*"
    return name if re.fullmatch(plain, name) else json.dumps(name)
