"""Fine-tuning examples: their text chunks, which chunks are in the loss, and errors about broken records."""

import gzip
import json

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.sections.sources import AlpacaSource, ChatSource, PromptCompletionSource
from nbtrain.corpus.records import Example, Tally
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.sources.templates import Template

TYPES = {"prompt-completion": PromptCompletionSource, "alpaca": AlpacaSource, "chat": ChatSource}


@pytest.fixture
def read(workspace):
    """Return a function that reads records as a kind; it returns each example's chunks, and the tally."""

    def make(kind, *records, file="data.jsonl", **settings):
        path = workspace / file
        if records:
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        reader = open_source(TYPES[kind](kind=kind, path=file, **settings), "run.yaml:7: data.sources[0]")
        tally = Tally()
        documents = list(reader.documents(tally))
        assert all(type(document) is Example for document in documents)
        return [document.pieces for document in documents], tally

    return make


def problems(tally) -> list[tuple[str, int | None, str]]:
    return [tuple(problem) for problem in tally.problems]


def chat(*messages) -> dict:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def sharegpt(*messages) -> dict:
    return {"conversations": [{"from": role, "value": content} for role, content in messages]}


def test_prompt_and_completion(read):
    """Texts are used unchanged and only the completion is in the loss; an empty prompt adds no chunk."""
    records = [{"prompt": "Q: {x}\n", "completion": " A", "more": 1}, {"prompt": "", "completion": "all"}]
    pieces, tally = read("prompt-completion", *records)
    assert pieces == [(("Q: {x}\n", False), (" A", True)), (("all", True),)]
    assert (tally.records, tally.broken) == (2, 0)
    pieces, _ = read(
        "prompt-completion", {"question": "Q", "answer": "A"}, prompt_key="question", completion_key="answer"
    )
    assert pieces == [(("Q", False), ("A", True))]


def test_broken_prompts_and_completions(read):
    """Missing keys, values of other types and empty answers break a record, which is
    reported with file and line.
    """
    _, tally = read(
        "prompt-completion",
        {"prompt": "Q"},
        {"prompt": "Q", "completion": "A"},
        {"prompt": 3, "completion": "A"},
        {"prompt": "Q", "completion": " \n"},
    )
    assert problems(tally) == [
        ("data.jsonl", 1, "no key 'completion' among 'prompt'"),
        ("data.jsonl", 3, "'prompt' is not text but a number"),
        ("data.jsonl", 4, "'completion' is empty"),
    ]
    assert (tally.records, tally.broken, tally.dropped["broken_record"]) == (4, 3, 3)


def test_alpaca_prompts_are_the_published_ones(read):
    """Prompts equal Alpaca's published ones, with an input and with a missing, null or empty input."""
    pieces, tally = read(
        "alpaca",
        {"instruction": "Add.", "input": "1, {input}", "output": "3"},
        {"instruction": "Greet {instruction}.", "input": "", "output": "Hi"},
        {"instruction": "Greet.", "output": "Hi"},
        {"instruction": "Greet.", "input": None, "output": "Hi", "text": "unused"},
    )
    begin = "Below is an instruction that describes a task"
    end = "Write a response that appropriately completes the request.\n\n### Instruction:\n"
    without = f"{begin}. {end}"
    assert pieces == [
        (
            (
                f"{begin}, paired with an input that provides further context. {end}"
                "Add.\n\n### Input:\n1, {input}\n\n### Response:",
                False,
            ),
            ("3", True),
        ),
        ((f"{without}Greet {{instruction}}.\n\n### Response:", False), ("Hi", True)),
        ((f"{without}Greet.\n\n### Response:", False), ("Hi", True)),
        ((f"{without}Greet.\n\n### Response:", False), ("Hi", True)),
    ]
    assert tally.broken == 0


def test_alpaca_with_a_template_of_its_own(read):
    """Each field is substituted once; a record with an input is broken if the
    template has no field for it.
    """
    record = {"instruction": "Do {input}", "input": "it", "output": "done"}
    pieces, _ = read("alpaca", record, template="{instruction} / {input} =")
    assert pieces == [(("Do {input} / it =", False), ("done", True))]
    pieces, tally = read(
        "alpaca", record, {"instruction": "Do", "output": "done"}, template="{instruction}: "
    )
    assert pieces == [(("Do: ", False), ("done", True))]
    assert problems(tally) == [("data.jsonl", 1, "'input' is not empty, but the template has no {input}")]


def test_broken_alpaca(read):
    """A record with an empty instruction or output, or an input that is not text, is broken."""
    _, tally = read(
        "alpaca",
        {"instruction": "", "output": "x"},
        {"instruction": "x", "input": ["y"], "output": "x"},
        {"instruction": "x", "output": ""},
    )
    assert problems(tally) == [
        ("data.jsonl", 1, "'instruction' is empty"),
        ("data.jsonl", 2, "'input' is not text but a list"),
        ("data.jsonl", 3, "'output' is empty"),
    ]


def test_an_array_in_a_json_file(read, workspace):
    """A JSON array, the format of Alpaca's own file, is read, and its elements are numbered from 1."""
    records = [{"instruction": "a", "output": "b"}, {"instruction": "a"}, 3]
    (workspace / "alpaca.json").write_text(json.dumps(records, indent=1))
    pieces, tally = read("alpaca", file="alpaca.json", template="{instruction}")
    assert pieces == [(("a", False), ("b", True))]
    assert problems(tally) == [
        ("alpaca.json", 2, "no key 'output' among 'instruction'"),
        ("alpaca.json", 3, "not an object but a number"),
    ]


def test_conversations(read):
    """Headers and the other roles' messages are the prompt; an answer and the text after it are one chunk."""
    expected = (
        ("<|system|>\nBe brief.\n<|user|>\nHi {role}\n<|assistant|>\n", False),
        ("Hello\n", True),
        ("<|user|>\nBye\n<|assistant|>\n", False),
        ("Bye.\n", True),
    )
    turns = [("system", "Be brief."), ("user", "Hi {role}"), ("assistant", "Hello"), ("user", "Bye")]
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns.append(("assistant", "Bye."))
    pieces, tally = read("chat", chat(*turns), sharegpt(*((names[role], text) for role, text in turns)))
    assert pieces == [expected, expected]
    assert tally.broken == 0


def test_template_and_learnt_roles_of_a_conversation(read):
    """The template's text after a message in the loss is in the loss too; any role can be put in the loss."""
    pieces, _ = read(
        "chat",
        {"turns": [{"role": "user", "content": "Q"}, {"role": "critic", "content": "{content}"}]},
        messages_key="turns",
        template="[{role}] {content} (end {role}) {}",
        learn_roles=["critic", "human"],
    )
    assert pieces == [
        (
            ("[user] ", False),
            ("Q (end user) {}", True),
            ("[critic] ", False),
            ("{content} (end critic) {}", True),
        )
    ]


def test_what_follows_the_last_learnt_message_is_left_out(read):
    """Messages after the last one in the loss are dropped; an empty message outside the loss is kept."""
    pieces, _ = read("chat", chat(("user", ""), ("assistant", "A"), ("user", "Thanks"), ("tool", "x")))
    assert pieces == [(("<|user|>\n\n<|assistant|>\n", False), ("A\n", True))]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (
            {"text": "x"},
            "no key 'messages' or 'conversations' among 'text'; such records are read by kind: jsonl",
        ),
        ({"messages": None}, "no key 'messages' or 'conversations' among 'messages'"),
        ({"messages": "hello"}, "'messages' is not a list but text"),
        ({"messages": []}, "'messages' contains no message with the role assistant"),
        (chat(("user", "Q")), "'messages' contains no message with the role assistant"),
        ({"conversations": ["Q"]}, "conversations[0] is not an object but text"),
        ({"messages": [{"content": "x"}]}, "messages[0] has neither 'role' nor 'from' among 'content'"),
        (
            chat(("user", "Q"), ("bot", "A")),
            "messages[1].role = 'bot', which is not a known role (assistant, bard, bing, chatgpt, developer, "
            "function, function_call, gpt, human, model, observation, prompter, system, tool, user). If it "
            "means the assistant, add to this source: roles: {bot: assistant}",
        ),
        (chat((["user"], "Q")), "messages[0].role is not text but a list"),
        (
            {"conversations": [{"from": "human", "text": "x"}]},
            "conversations[0] has no key 'value' among 'from', 'text'",
        ),
        (chat(("user", None), ("assistant", "A")), "messages[0].content is not text but null"),
        (
            chat(("user", [{"type": "text"}]), ("assistant", "A")),
            "messages[0].content is not text but a list",
        ),
        (sharegpt(("human", "Q"), ("gpt", " ")), "conversations[1].value is empty"),
    ],
)
def test_broken_conversations(read, record, what):
    """Each kind of broken record is reported with file and line, and the records after it are read."""
    pieces, tally = read("chat", chat(("user", "Q"), ("assistant", "A")), record, chat(("assistant", "B")))
    assert len(pieces) == 2
    assert problems(tally) == [("data.jsonl", 2, what)]


def test_compressed_lines_and_parquet(read, workspace):
    """.jsonl.gz and .parquet give the same examples; a null column of messages is skipped."""
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    import pyarrow.parquet as pq

    record = chat(("user", "Q"), ("assistant", "A"))
    expected, _ = read("chat", record)
    (workspace / "c.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
    assert read("chat", file="c.jsonl.gz")[0] == expected
    rows = [{**record, "conversations": None}, {"messages": None, **sharegpt(("human", "Q"), ("gpt", "A"))}]
    pq.write_table(pa.Table.from_pylist(rows), workspace / "c.parquet")
    assert read("chat", file="c.parquet")[0] == expected * 2
    pq.write_table(pa.Table.from_pylist([{"prompt": "Q", "completion": None}]), workspace / "p.parquet")
    pieces, tally = read("prompt-completion", file="p.parquet")
    assert pieces == [] and problems(tally) == [("p.parquet", 1, "'completion' is not text but null")]
    times = pa.array([1, 2], pa.timestamp("ns"))
    table = pa.table({"instruction": ["a", "b"], "output": ["c", "d"], "input": [None, "e"], "when": times})
    pq.write_table(table, workspace / "times.parquet")
    pieces, tally = read("alpaca", file="times.parquet", template="{instruction}{input}")
    assert (pieces, tally.broken) == ([(("a", False), ("c", True)), (("be", False), ("d", True))], 0)
    pq.write_table(pa.table({"instruction": ["a", "b"], "output": times}), workspace / "broken.parquet")
    assert problems(read("alpaca", file="broken.parquet")[1]) == [
        ("broken.parquet", 1, "'output' is not text but TimestampScalar"),
        ("broken.parquet", 2, "'output' is not text but TimestampScalar"),
    ]


def test_a_template_reaches_its_fields_and_nothing_else():
    """Only a template's own fields are replaced; other braces, attributes, indices
    and formats are plain text.
    """
    template = Template("{a.__class__} {a[0]} {a!r} {a:>9} {{a}} {b} {} {", ("a",))
    assert template.render({"a": "{a}{b}"}) == "{a.__class__} {a[0]} {a!r} {a:>9} {{a}{b}} {b} {} {"
    assert template.fields == {"a"}
    both = Template("x{a}y{b}z{a}", ("a", "b"))
    assert both.render({"a": "1", "b": "2"}) == "x1y2z1"


def test_templates_without_their_field_are_refused(tmp_path):
    """A template without its required field is refused with file, line and rule."""

    def refusal(source):
        path = tmp_path / "run.yaml"
        path.write_text(f"extends: gpt-tiny\nname: t\ndata:\n  sources:\n    - {source}\n")
        with pytest.raises(ConfigError) as caught:
            load(path)
        return str(caught.value)

    expected = {
        "{kind: chat, path: x, template: '{role} {contents}'}": (
            "template = '{role} {contents}': must contain {content}."
        ),
        "{kind: alpaca, path: x, template: '{input}'}": "template = '{input}': must contain {instruction}.",
        "{kind: chat, path: x, learn_roles: []}": ("learn_roles = []: must have at least 1 item."),
        "{kind: chat, path: x, weight: 0.0}": "weight = 0.0: must be more than 0.",
    }
    for source, what in expected.items():
        assert refusal(source) == f"run.yaml:5: data.sources.0.{what}"


def test_names_of_roles_and_content_in_parts(read):
    """ShareGPT's other key names and content given as a list of texts are read; an
    image breaks the record.
    """
    said = [{"from": "human", "value": "Q"}, {"from": "chatgpt", "value": "A"}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": "A"},
    ]
    picture = [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "A"}]
    pieces, tally = read("chat", {"conversations": said}, {"messages": parts}, {"messages": picture})
    assert pieces[0] == pieces[1]
    what = "messages[0].content has a part of type 'image'; only text is read"
    assert problems(tally) == [("data.jsonl", 3, what)]


def test_roles_of_the_yaml(read):
    """`roles` maps role names; the message about an unknown role has the complete YAML line to add."""
    record = chat(("on", "Q"), ("Bot 2", "A"))
    _, tally = read("chat", record, roles={"customer": "user"})
    assert problems(tally)[0][2].endswith('add to this source: roles: {customer: user, "on": user}')
    _, tally = read("chat", record, roles={"customer": "user", "on": "user"})
    line = problems(tally)[0][2].rpartition("roles: ")[2]
    assert line == '{customer: user, "on": user, "Bot 2": assistant}'
    pieces, tally = read("chat", record, roles=yaml.safe_load(line))
    assert (pieces, tally.broken) == (read("chat", chat(("user", "Q"), ("assistant", "A")))[0], 0)
    pieces, _ = read("chat", record, roles={"on": "user", "Bot 2": "critic"}, learn_roles=["Bot 2"])
    assert pieces == [(("<|user|>\nQ\n<|critic|>\n", False), ("A\n", True))]


def message(name: str, parent: str | None = None, **more) -> dict:
    """Return a message of a tree; the length of its name is its depth, and roles alternate with depth."""
    role = "prompter" if len(name) % 2 else "assistant"
    return {
        "message_id": name,
        "parent_id": parent,
        "message_tree_id": name[0],
        "text": name,
        "role": role,
        **more,
    }


# Two answers to a question. The first has two follow-up questions, one of which is answered.
TREE = [message("a"), message("ab", "a"), message("abc", "ab"), message("abcd", "abc"), message("abd", "ab")]
TREE.append(message("ac", "a"))
ANSWERS = [
    (
        ("<|user|>\na\n<|assistant|>\n", False),
        ("ab\n", True),
        ("<|user|>\nabc\n<|assistant|>\n", False),
        ("abcd\n", True),
    ),
    (("<|user|>\na\n<|assistant|>\n", False), ("ac\n", True)),
]


def nested(rows: list[dict]) -> dict:
    """Return the rows of a tree as one nested record, as in OpenAssistant's .trees.jsonl."""
    nodes = {row["message_id"]: {**row, "replies": []} for row in rows}
    for row in rows[1:]:
        nodes[row["parent_id"]]["replies"].append(nodes[row["message_id"]])
    return {
        "message_tree_id": rows[0]["message_id"],
        "tree_state": "ready",
        "prompt": nodes[rows[0]["message_id"]],
    }


def test_trees_of_conversations(read):
    """Each path to a leaf is a conversation and each answer is in the loss once, for
    nested records and for rows.
    """
    rows = [*TREE, *(dict(row, message_tree_id="z") for row in TREE)]
    pieces, tally = read("chat", *rows)
    assert (pieces, tally.records, tally.broken, tally.dropped) == (ANSWERS * 2, 12, 0, {})
    pieces, tally = read("chat", nested(TREE), nested(TREE))
    assert (pieces, tally.records, tally.broken, tally.dropped) == (ANSWERS * 2, 2, 0, {})


def test_a_shared_answer_is_learnt_once(read):
    """An answer that two paths share is in the loss in the first and is only context in the second."""
    rows = [message("a"), message("ab", "a"), message("abc", "ab"), message("abcd", "abc")]
    rows += [message("abx", "ab"), message("abxy", "abx")]
    pieces, _ = read("chat", *rows)
    assert pieces[1] == (
        ("<|user|>\na\n<|assistant|>\nab\n<|user|>\nabx\n<|assistant|>\n", False),
        ("abxy\n", True),
    )


def test_broken_trees(read):
    """Rows away from their tree, unknown roles, deleted messages and unanswered
    questions are counted or reported.
    """
    late = dict(message("qr", "q"), message_tree_id="q")
    _, tally = read("chat", message("q"), message("x"), late)
    assert tally.dropped == {"unanswered": 2, "broken_record": 1}
    assert problems(tally) == [
        (
            "data.jsonl",
            None,
            "row 3: parent_id is 'q', but no row of the same tree has this message_id; the rows of a tree "
            "must be adjacent: sort the file by message_tree_id",
        )
    ]
    deleted = [dict(row, deleted=row["message_id"] == "ac") for row in TREE]
    for records in (deleted, [nested(deleted)]):
        pieces, tally = read("chat", *records)
        assert (pieces, tally.dropped) == (ANSWERS[:1], {"deleted_message": 1})
    strange = [dict(row, role="bot") if row["message_id"] == "ac" else row for row in TREE]
    for records, line, place in ((strange, None, "row 6"), ([nested(strange)], 1, "prompt.replies[1]")):
        pieces, tally = read("chat", *records)
        assert pieces == ANSWERS[:1]
        ((_, found, what),) = problems(tally)
        assert (found, what.split(",")[0]) == (line, f"{place}.role = 'bot'")
    _, tally = read("chat", {"prompt": {"role": "prompter", "text": "x", "replies": 5}})
    assert problems(tally) == [("data.jsonl", 1, "prompt.replies is not a list but a number")]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_part_cuts_no_tree(read, workspace, monkeypatch, suffix):
    """A file of message trees is never split into parts, because trees extend over lines and row groups."""
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr(base, "PART_BYTES", 1)
    path = workspace / f"trees{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(TREE), path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in TREE))
    pieces, tally = read("chat", file=path.name)
    assert (pieces, tally.broken) == (ANSWERS, 0)
