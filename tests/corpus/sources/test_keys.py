"""Every key of a record is used, refused by name, or counted: fixed cases and 3,000 random records."""

import functools
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbtrain.config.sections.sources import (
    SOURCE_TYPES,
    AlpacaSource,
    ChatSource,
    JsonlSource,
    ParquetSource,
    PreferenceSource,
    PromptCompletionSource,
    RecordSourceModel,
    TokensSource,
    kind_of,
)
from nbtrain.corpus.records import MOST_KEYS, OTHER_KEYS, Tally
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.sources.keys import TABLES, holds_value, looks_like_mark
from nbtrain.corpus.sources.record_kind import source_of
from nbtrain.corpus.sources.shapes import SHAPES, way_forward
from tests.fuzzing import num_cases

MODELS = {
    "prompt-completion": PromptCompletionSource,
    "alpaca": AlpacaSource,
    "chat": ChatSource,
    "preference": PreferenceSource,
}


@functools.cache
def reader_of(kind, settings):
    """Return the reader of a kind; settings are given as JSON."""
    return open_source(MODELS[kind](kind=kind, path="x.jsonl", **json.loads(settings)), "data.sources[0]")


def read_record(kind, record, **settings):
    """Return the chunks of a record's examples, and the tally; a preference pair
    gives both answers' chunks.
    """
    tally = Tally()
    example = reader_of(kind, json.dumps(settings)).checked(record, "x.jsonl", 1, tally)
    return (None if example is None else example.pieces), tally


def pieces_of(kind, record, **settings):
    """Return the text chunks of a valid record."""
    pieces, tally = read_record(kind, record, **settings)
    assert tally.problems == []
    return pieces


def problem_of(kind, record, **settings):
    """Return the reason why a record is broken."""
    pieces, tally = read_record(kind, record, **settings)
    assert pieces is None
    return tally.problems[0].what


def loss_of(pieces):
    """Return the chunks of text that are in the loss."""
    return [text for text, in_loss in pieces if in_loss]


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def chat(*messages, **more):
    return {"messages": list(messages), **more}


def test_the_table_has_one_rule_for_each_key():
    """The table of each kind has at most one rule per key, and every refused key has a fix."""
    kinds = {kind_of(model) for model in SOURCE_TYPES if issubclass(model, RecordSourceModel)}
    assert set(TABLES) == kinds
    for kind, table in TABLES.items():
        for rules in (table.record, table.message):
            names = Counter(name for rule in rules for name in rule.names)
            assert [name for name, count in names.items() if count > 1] == [], kind
            assert all(rule.fix for rule in rules if rule.use == "refused"), kind


def test_what_holds_a_value():
    """null and empty containers, however nested, do not count as values; false and 0 do."""
    empty = [None, "", [], {}, [None, {}], {"a": None, "b": [""]}]
    assert not any(map(holds_value, empty))
    assert all(map(holds_value, [0, False, 0.0, " ", [0], {"a": False}]))


# -- Marks of turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [False, 0, 0.0])
@pytest.mark.parametrize(
    "key", ["train", "training", "trainable", "weight", "loss", "loss_mask", "loss_weight"]
)
def test_a_turn_that_the_data_marks_has_no_loss(key, value):
    """A turn that the data marks as untrained is outside the loss; other turns and
    null marks are not affected.
    """
    wrong, right = assistant("5", **{key: value}), assistant("4", **{key: None})
    pieces = pieces_of("chat", chat(user("2 + 2?"), wrong, user("No."), right))
    assert loss_of(pieces) == ["4\n"]
    assert "".join(text for text, _ in pieces).endswith("<|assistant|>\n5\n<|user|>\nNo.\n<|assistant|>\n4\n")
    said = [
        {"from": "human", "value": "a"},
        {"from": "gpt", "value": "b"},
        {"from": "gpt", "value": "c", key: value},
    ]
    assert loss_of(pieces_of("chat", {"conversations": said})) == ["b\n"]


def test_marks_of_turns():
    """Marks apply to any role; torchtune's `masked` has the opposite meaning; several marks must agree."""
    pieces = pieces_of(
        "chat", chat(user("a", train=True), assistant("b", masked=True), assistant("c", masked=False))
    )
    assert loss_of(pieces) == ["a\n", "c\n"]
    assert loss_of(
        pieces_of("chat", chat(user("a"), assistant("b"), assistant("c", weight=1, train=False)))
    ) == ["b\n"]
    half = problem_of("chat", chat(user("a"), assistant("b", weight=0.5)))
    assert half.startswith("messages[1].weight = 0.5 must be 0, 1, true or false")
    assert problem_of("chat", chat(user("a"), assistant("b", train="no"))).startswith(
        "messages[1].train = no must be"
    )
    pieces, tally = read_record("chat", chat(user("a"), assistant("b", train=False)))
    assert (pieces, tally.broken, tally.dropped) == (None, 0, {"no_loss": 1})


@pytest.mark.parametrize("key", ["is_masked", "lossMask", "no-loss", "turn_weight", "do_not_train", "mask"])
def test_a_mark_of_another_name_is_refused(key):
    """A key that may be a loss mark under an unknown name is refused with its name,
    in messages and in records.
    """
    record = chat(user("a"), assistant("b", **{key: False}))
    assert f"messages[1].{key} holds a value that kind: chat does not read" in problem_of("chat", record)
    assert f"ignored_keys: [{key}]" in problem_of("chat", record)
    pieces, tally = read_record("chat", record, ignored_keys=[key])
    assert loss_of(pieces) == ["b\n"] and tally.unread_keys == {f"messages[].{key}": 1}
    for kind, other in BASE.items():
        assert repr(key) in problem_of(kind, {**other, key: [0, 1]})
    for value in (True, 1, "false", "0.5"):
        assert f"messages[0].{key}" in problem_of("chat", chat(user("a", **{key: value}), assistant("b")))
    if key not in ("mask", "lossMask"):
        _, tally = read_record("chat", chat(user("a"), assistant("b"), **{key: "last turn"}))
        assert tally.unread_keys == {key: 1}


@pytest.mark.parametrize("kind", MODELS)
def test_a_record_that_is_marked_to_be_left_out(kind):
    """skip: true and keep: false are refused, as text and in messages too; skip: false
    and keep: true are counted.
    """
    for key, value, other in (
        ("skip", True, False),
        ("exclude", 1, 0),
        ("ignore", "true", "no"),
        ("keep", False, True),
        ("include", 0, "yes"),
    ):
        assert repr(key) in problem_of(kind, {**BASE[kind], key: value})
        _, tally = read_record(kind, {**BASE[kind], key: other})
        assert tally.unread_keys == {key: 1}
        said = problem_of("chat", chat(user("a"), assistant("b", **{key: value})))
        assert f"messages[1].{key}" in said and "train: false" in said


@pytest.mark.parametrize(
    ("key", "value", "known"),
    [
        ("toolCalls", [{"name": "f"}], "tool_calls"),
        ("reasoningContent", "c", "reasoning_content"),
        ("imageUrl", "c", None),
        ("tools", [{"name": "f"}], None),
    ],
)
def test_other_spellings_of_a_key_are_refused(key, value, known):
    """A known key in another spelling is refused instead of dropped."""
    said = problem_of("chat", chat(user("a"), assistant("b", **{key: value})), **TEMPLATES)
    assert f"messages[1].{key} holds a value" in said
    assert known is None or f"rename it to {known!r}." in said
    for name in ("System-Prompt", "systemPrompt", "SYSTEM"):
        for kind, record in BASE.items():
            assert repr(name) in problem_of(kind, {**record, name: "Be brief."})
    assert "'Input'" in problem_of("alpaca", {"instruction": "a", "Input": "c", "output": "b"})
    opened = pieces_of("chat", chat(user("a"), assistant("b"), system_message="Be brief."))
    assert opened[0][0].startswith("<|system|>\nBe brief.\n")


def test_marks_of_parts_of_a_content():
    """A loss mark on a part of a message's content is refused by its position; other
    keys of parts are counted.
    """
    for key, value in (("train", False), ("weight", 0), ("masked", True), ("no_loss", True)):
        part = {"type": "text", "text": "b", key: value}
        assert f"messages[1].content[0].{key}" in problem_of("chat", chat(user("a"), assistant([part])))
        record = {"prompt": [part], "completion": "b"}
        assert f"'prompt'[0].{key} holds a value" in problem_of("prompt-completion", record)
    part = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}, "train": None}
    pieces, tally = read_record("chat", chat(user("a"), assistant([part])))
    assert loss_of(pieces) == ["b\n"] and tally.unread_keys == {"messages[].cache_control": 1}


def test_words_that_make_a_mark():
    marks = ["mask", "trainOnTurn", "LOSS", "ignore_loss", "sample-weights", "label", "is_supervised"]
    others = ["source", "trains", "glossary", "weightlifting", "task", "constraint"]
    assert all(map(looks_like_mark, marks)) and not any(map(looks_like_mark, others))


def test_spans_of_a_turn():
    """Axolotl's train_detail spans, with inclusive ends, select the loss; the turn's
    end follows the last span.
    """
    content = "I'm doing very well, thank you!"
    spans = [(0, 8, False), (9, 18, True), (19, 30, False)]
    details = [{"begin_offset": first, "end_offset": last, "train": train} for first, last, train in spans]
    pieces = pieces_of("chat", chat(user("How?"), assistant(content, train_detail=details)))
    assert pieces == (("<|user|>\nHow?\n<|assistant|>\nI'm doing", False), (" very well", True))
    pieces = pieces_of(
        "chat", chat(user("How?"), assistant(content, train_detail=details[1:2]), assistant("b"))
    )
    assert loss_of(pieces) == [" very well", "b\n"]
    last = [{"begin_offset": 19, "end_offset": 30, "train": True}]
    assert loss_of(pieces_of("chat", chat(user("How?"), assistant(content, train_detail=last)))) == [
        ", thank you!\n"
    ]
    for first, last, train in ((0, 31, True), (5, 4, True), (0, 3, 1), (-1, 3, True)):
        wrong = [{"begin_offset": first, "end_offset": last, "train": train}]
        said = problem_of("chat", chat(user("How?"), assistant(content, train_detail=wrong)))
        assert said.startswith("messages[1].train_detail[0] = ") and "31 characters" in said
    pieces, tally = read_record("chat", chat(user("a"), assistant(content, train_detail=details[:1])))
    assert (pieces, tally.dropped) == (None, {"no_loss": 1})


# -- Keys next to the messages ----------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Wetter in einer Stadt ü"}}
TEMPLATES = {
    "tools_template": "# Tools\n{tools}",
    "tool_call_template": "<tool_call>\n{tool_call}\n</tool_call>",
    "reasoning_template": "<think>\n{reasoning}\n</think>\n\n",
}


def test_tools_and_their_calls_are_rendered():
    """Tools follow the system message, and calls follow the content, in the loss;
    reasoning comes before it.
    """
    record = chat(
        user("Weather in Oslo?"),
        assistant("Let me look.", tool_calls=[CALL, {**CALL["function"], "arguments": {"city": "Rome"}}]),
        {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "4 C"},
        assistant("4 degrees.", reasoning_content="Read the tool."),
        tools=[TOOL],
        system="Help.",
    )
    pieces, tally = read_record("chat", record, **TEMPLATES)
    tool = (
        '{"type": "function", "function": {"name": "get_weather", "description": "Wetter in einer Stadt ü"}}'
    )
    assert pieces == (
        (f"<|system|>\nHelp.\n\n# Tools\n{tool}\n<|user|>\nWeather in Oslo?\n<|assistant|>\n", False),
        (
            "Let me look.\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n',
            True,
        ),
        ("<|tool|>\n4 C\n<|assistant|>\n", False),
        ("<think>\nRead the tool.\n</think>\n\n4 degrees.\n", True),
    )
    assert tally.unread_keys == {"messages[].name": 1, "messages[].tool_call_id": 1}
    alone = chat(
        user("a"), {"role": "assistant", "content": None, "tool_calls": json.dumps([CALL])}, tools="[]"
    )
    assert loss_of(pieces_of("chat", alone, **TEMPLATES)) == [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    ]
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}
    assert (
        '{"name": "f", "arguments": {}}' in loss_of(pieces_of("chat", chat(user("a"), old), **TEMPLATES))[0]
    )


def test_without_a_template_they_are_refused():
    """Without their templates, tools, calls and reasoning are refused, and the
    message names the fields to set.
    """
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    said = problem_of("chat", chat(user("a"), call, assistant("b", thinking="c"), tools=[TOOL]))
    for word in ("messages[1].tool_calls", "messages[2].thinking", "'tools'", *TEMPLATES):
        assert word in said
    assert "ignored_keys: [tool_calls, thinking, tools]" in said
    pieces, tally = read_record(
        "chat", chat(user("a"), assistant("b", thinking="c"), tools=[]), ignored_keys=["thinking"]
    )
    assert loss_of(pieces) == ["b\n"] and tally.unread_keys == {"messages[].thinking": 1}
    for kind, record in BASE.items():
        if kind != "chat":
            assert "'tools' holds a value" in problem_of(kind, {**record, "tools": [TOOL]})
    broken = assistant("b", tool_calls=[{"function": {"name": "f", "arguments": "{city"}}])
    assert "messages[1].tool_calls[0].arguments is text but not valid JSON" in problem_of(
        "chat", chat(user("a"), broken), **TEMPLATES
    )


def test_a_system_prompt_beside_the_conversation():
    """A system prompt next to the conversation comes first; a second one, or one for
    another kind, is refused.
    """
    opened = "<|system|>\nBe brief.\n<|user|>\na\n<|assistant|>\n"
    first = {"role": "system", "content": "Be brief."}
    for record in (
        chat(user("a"), assistant("b"), system="Be brief."),
        chat(first, user("a"), assistant("b"), system_prompt="Be brief."),
        {
            "system": "Be brief.",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        },
        {"instruction": "a", "output": "b", "system": "Be brief."},
        {"prompt": "a", "completion": "b", "system": "Be brief."},
    ):
        assert pieces_of("chat", record) == ((opened, False), ("b\n", True))
    assert "'system' holds a value" in problem_of(
        "chat", chat(first, user("a"), assistant("b"), system="Be long.")
    )
    pair = {
        "prompt": [user("a")],
        "chosen": [assistant("b")],
        "rejected": [assistant("c")],
        "system": "Be brief.",
    }
    assert pieces_of("preference", pair)[0] == (opened, False)
    alpaca = {"instruction": "a", "output": "b", "system": "Be brief."}
    assert pieces_of("alpaca", alpaca, template="{system}|{instruction}|")[0] == ("Be brief.|a|", False)
    for kind, record in BASE.items():
        if kind != "chat":
            assert "'system' holds a value" in problem_of(kind, {**record, "system": "Be brief."})


@pytest.mark.parametrize("key", ["history", "context", "images", "reasoning_content", "chat_template_kwargs"])
@pytest.mark.parametrize("kind", MODELS)
def test_what_changes_the_question_is_refused(kind, key):
    """Keys that would change the question are refused in any record, unless their value is empty."""
    value = {"history": [["a", "b"]], "chat_template_kwargs": {"enable_thinking": False}}.get(key, ["a"])
    assert f"{key!r} holds a value that kind: {kind} does not read" in problem_of(
        kind, {**BASE[kind], key: value}
    )
    _, tally = read_record(kind, {**BASE[kind], key: []})
    assert tally.broken == 0 and not tally.unread_keys
    if kind in ("alpaca", "prompt-completion"):
        for part in ("question", "choices", "suffix"):
            assert f"{part!r} holds a value" in problem_of(kind, {**BASE[kind], part: "c"})


def test_history_is_a_conversation():
    """kind: chat reads the history that kind: alpaca refuses; the input follows the instruction."""
    record = {
        "instruction": "And in",
        "input": "Bergen?",
        "output": "6.",
        "history": [["Weather in Oslo?", "4."]],
    }
    assert pieces_of("chat", record) == (
        ("<|user|>\nWeather in Oslo?\n<|assistant|>\n", False),
        ("4.\n", True),
        ("<|user|>\nAnd in\nBergen?\n<|assistant|>\n", False),
        ("6.\n", True),
    )
    record["history"] = json.dumps(record["history"])
    assert loss_of(pieces_of("chat", record)) == ["4.\n", "6.\n"]
    assert "'history' is not a list of pairs" in problem_of("chat", {**record, "history": ["a", "b"]})
    assert "kind: chat" in problem_of("alpaca", record)


def test_judgements_are_refused_and_topics_counted():
    """A boolean or numeric label is refused, because it may rate the answer; a text
    label counts as a topic.
    """
    for kind, record in BASE.items():
        for value in (False, 1, 0.5, [1]):
            assert "'label' holds a value" in problem_of(kind, {**record, "label": value})
        _, tally = read_record(kind, {**record, "label": "maths"})
        assert tally.unread_keys == {"label": 1}


@pytest.mark.parametrize("split", ["test", "validation", "dev", "Test"])
def test_records_of_a_held_out_split_are_not_trained_on(workspace, read, refusal, split):
    """Held-out splits in records, lines or columns are refused; train and ignored splits are counted."""
    for kind, record in BASE.items():
        assert "'split' holds a value" in problem_of(kind, {**record, "split": split})
        assert read_record(kind, {**record, "split": "train"})[1].unread_keys == {"split": 1}
    rows = [{"text": "a", "split": "train"}, {"text": "b", "split": split}]
    (workspace / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), workspace / "a.parquet")
    lines, columns = {"kind": "jsonl", "path": "a.jsonl"}, {"kind": "parquet", "path": "a.parquet"}
    found = read(JsonlSource(**lines))
    assert found.records == ["a"] and "a.jsonl:2: 'split' holds a value" in found.problems[0]
    assert "a.parquet: 'split' holds a value" in refusal(ParquetSource(**columns))
    for source in (
        JsonlSource(**lines, ignored_keys=["split"]),
        ParquetSource(**columns, ignored_keys=["split"]),
    ):
        found = read(source)
        assert found.records == ["a", "b"] and found.unread_keys == {"split": 2}


# -- Shapes ------------------------------------------------------------------------------------------------

TALK = [user("a"), assistant("b")]
BASE = {
    "prompt-completion": {"prompt": "a", "completion": "b"},
    "alpaca": {"instruction": "a", "output": "b"},
    "chat": chat(*TALK),
    "preference": {"prompt": "a", "chosen": "b", "rejected": "c"},
}


@pytest.mark.parametrize(
    "record",
    [
        {"messages": json.dumps(TALK)},
        {"messages": {"role": ["user", "assistant"], "content": ["a", "b"]}},
        {"conversations": {"from": ["human", "gpt"], "value": ["a", "b"], "weight": None}},
        {"conversation": TALK},
        {"conversation": [{"human": "a", "assistant": "b"}]},
        {
            "messages": None,
            "conversations": [{"from": "human", "value": "a"}, {"role": "assistant", "value": "b"}],
        },
        {"prompt": TALK[:1], "completion": TALK[1:]},
        {"prompt": "a", "completion": "b"},
        {"question": "a", "answer": "b"},
        {"messages": [{"role": "user", "from": None, "content": None, "value": "a"}, TALK[1]]},
    ],
    ids=str,
)
def test_one_conversation_in_many_shapes(record):
    """A conversation can be a list, JSON text, an object of lists, pairs, or prompt and completion."""
    assert pieces_of("chat", record) == (("<|user|>\na\n<|assistant|>\n", False), ("b\n", True))


def test_an_answer_in_the_prompt_has_no_loss():
    """In TRL's prompt-completion format only the completion is in the loss, not answers in the prompt."""
    pieces = pieces_of("chat", {"prompt": [*TALK, user("c")], "completion": [assistant("d")], "system": "s"})
    assert loss_of(pieces) == ["d\n"]
    prompt, completion = [user("a")], [assistant("b")]
    expected = pieces_of("chat", chat(*prompt, *completion))
    for record in (
        {"prompt": prompt, "completion": completion},
        {"prompt": prompt, "completion": "b"},
        {"prompt": "a", "completion": completion[0]},
        {"prompt": json.dumps(prompt), "completion": json.dumps(completion)},
    ):
        said = problem_of("prompt-completion", record)
        assert said.endswith("messages, not text; use kind: chat to read them")
        assert pieces_of("chat", record) == expected


def test_pairs_in_many_shapes():
    """Preference pairs can be single messages, whole conversations, text, or under OpenAI's keys."""
    expected = pieces_of("preference", {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [assistant("c")]})
    assert loss_of(expected) == ["b\n", "c\n"]
    ranking = {
        "conversations": [{"from": "human", "value": "a"}],
        "chosen": {"from": "gpt", "value": "b"},
        "rejected": {"from": "gpt", "value": "c"},
    }
    assert pieces_of("preference", ranking) == expected
    assert pieces_of("preference", {**ranking, "chosen": "b", "rejected": "c"}) == expected
    preferred = {"input": {"messages": TALK[:1], "tools": []}, "preferred_output": TALK[1:]}
    preferred["non_preferred_output"] = [assistant("c")]
    advice = problem_of("preference", preferred).partition("add to this source: ")[2]
    assert advice == "chosen_key: preferred_output, rejected_key: non_preferred_output, prompt_key: input"
    settings = dict(setting.split(": ") for setting in advice.split(", "))
    assert pieces_of("preference", preferred, **settings) == expected
    preferred["input"]["tools"] = [TOOL]
    assert "input.tools holds a value" in problem_of("preference", preferred, **settings)
    hh = "\n\nHuman: a b\n\nAssistant: c\n\nHuman: d\n\nAssistant:"
    pieces = pieces_of("preference", {"chosen": f"{hh} No e", "rejected": f"{hh} No f"})
    assert pieces == ((hh, False), (" No e", True), (hh, False), (" No f", True))
    pieces = pieces_of("preference", {"chosen": "The sky is blue.", "rejected": "The sky is green."})
    assert pieces == (("The sky is", False), (" blue.", True), ("The sky is", False), (" green.", True))
    said = problem_of("preference", {"question": "a", "chosen": "b", "rejected": "c"})
    assert said.endswith("add to this source: prompt_key: question")


def test_pairs_are_compared_as_they_are_rendered():
    """A preference pair whose two answers render to the same text is refused, however it is stored."""
    said = "'chosen' and 'rejected' render to the same text, so neither is preferred"
    parts = [{"type": "text", "text": "b"}]
    for chosen, rejected in (
        ("b", "b"),
        ([assistant("b")], [assistant(parts)]),
        ([assistant("b")], [{"from": "gpt", "value": "b"}]),
        ([assistant("b", id=1)], [assistant("b", id=2)]),
        ({"from": "gpt", "value": "b"}, [{"role": "assistant", "value": "b"}]),
    ):
        prompt = "a" if chosen == "b" else [user("a")]
        assert problem_of("preference", {"prompt": prompt, "chosen": chosen, "rejected": rejected}) == said
    template = {
        "template": "{content}\n",
        "roles": {"critic": "critic"},
        "learn_roles": ["assistant", "critic"],
    }
    pair = {
        "prompt": [user("a")],
        "chosen": [assistant("b")],
        "rejected": [{"role": "critic", "content": "b"}],
    }
    assert problem_of("preference", pair, **template) == said
    # The difference may be in a key that is refused.
    call = assistant("b", tool_calls=[CALL])
    pair = {"prompt": [user("a")], "chosen": [call], "rejected": [assistant("b")]}
    assert problem_of("preference", pair).startswith("chosen[0].tool_calls holds a value")
    # A difference in the question alone does not make the answers equal.
    same = {"chosen": [user("a", id=1), assistant("b")], "rejected": [user("a", id=2), assistant("c")]}
    assert loss_of(pieces_of("preference", same)) == ["b\n", "c\n"]


@pytest.mark.parametrize(
    ("kind", "record", "advice"),
    [
        (
            "alpaca",
            {"instruction": "a", "context": "b", "response": "c", "category": "d"},
            "add to this source: output_key: response, input_key: context",
        ),
        ("alpaca", {"messages": TALK}, "such records are read by kind: chat"),
        ("chat", {"chosen": "a", "rejected": "b"}, "such records are read by kind: preference"),
        ("chat", {"dialog": TALK}, "add to this source: messages_key: dialog"),
        (
            "prompt-completion",
            {"question": "a", "answer": "b"},
            "add to this source: prompt_key: question, completion_key: answer",
        ),
        ("prompt-completion", {"input_ids": [1]}, "such records are read by kind: tokens"),
        (
            "alpaca",
            {"Instruction": "a", "Input": "c", "Output": "b"},
            "add to this source: instruction_key: Instruction, output_key: Output, input_key: Input",
        ),
        (
            "preference",
            {"prompt": "a", "chosen_response": "b", "rejected_response": "c"},
            "add to this source: chosen_key: chosen_response, rejected_key: rejected_response",
        ),
        (
            "chat",
            {"Prompt": "a", "Completion": "b"},
            "such records are read by kind: prompt-completion with prompt_key: Prompt, completion_key: "
            "Completion",
        ),
    ],
)
def test_a_missing_key_has_a_way_forward(kind, record, advice):
    """The message about a missing key names the kind that reads such records, or the fields to set."""
    assert problem_of(kind, record).endswith(f"; {advice}")
    if advice.startswith("add"):
        settings = dict(
            setting.split(": ") for setting in advice.removeprefix("add to this source: ").split(", ")
        )
        assert pieces_of(kind, record, **settings)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join((shape.kind, *shape.keys)))
def test_the_source_of_records_is_the_one_that_is_advised(shape):
    """For each known format, a source is chosen that reads its records, with the settings of the advice."""
    values = {"chat": TALK, "tokens": [5, 6], "preference": "a"}
    record = {key: values.get(shape.kind, f"a {key}") for key in shape.keys}
    if shape.kind == "preference" and not shape.optional:
        record |= {"prompt": "q"} | {key: f" {key}" for key in shape.keys}
    for optional in ({}, {key: values.get(shape.kind, "more") for key in shape.optional.values()}):
        found = source_of([record | optional] * 3)
        kind, settings = found.pop("kind"), found
        assert kind == shape.kind
        advice = way_forward(record | optional, "mock")
        said = ", ".join(f"{setting}: {key}" for setting, key in settings.items())
        assert advice == f"; such records are read by kind: {kind}{f' with {said}' if said else ''}"
        if kind in MODELS and ("prompt" in record or kind != "preference"):
            assert pieces_of(kind, record | optional, **settings)


def test_messages_that_are_text_of_another_kind():
    """Python's repr, lists of other types and lists of different lengths break a record, with the reason."""
    assert problem_of("chat", {"messages": str(TALK)}) == (
        "'messages' is text but not valid JSON; store the messages as a list"
    )
    assert "different lengths" in problem_of("chat", {"messages": {"role": ["user"], "content": []}})
    part = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert problem_of("chat", chat(user(part), assistant("b"))) == (
        "messages[0].content has a part of type 'image_url'; only text is read"
    )


# -- Counts ------------------------------------------------------------------------------------------------


def test_keys_of_plain_text_are_counted(workspace, read):
    """In plain JSON lines, unread keys with values are counted; loss masks are refused unless ignored."""
    rows = [{"text": "a", "url": "u", "id": 0}, {"text": "b", "url": None, "id": 1}, {"id": 2, "text": "c"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    # Python's parser reads the first, and the second is broken.
    lines += ['{"text": "d", "score": NaN, "url": ""}\n', '{"text": 5, "url": "u"}\n']
    (workspace / "a.jsonl").write_text("".join(lines))
    found = read(JsonlSource(kind="jsonl", path="a.jsonl", max_broken_fraction=None))
    assert found.records == ["a", "b", "c", "d"] and found.unread_keys == {"url": 1, "id": 3, "score": 1}
    (workspace / "b.jsonl").write_text('{"text": "a", "loss_mask": [0]}\n')
    found = read(JsonlSource(kind="jsonl", path="b.jsonl"))
    assert "'loss_mask' holds a value that kind: jsonl does not read" in found.problems[0]
    found = read(JsonlSource(kind="jsonl", path="b.jsonl", ignored_keys=["loss_mask"]))
    assert found.records == ["a"] and found.unread_keys == {"loss_mask": 1}


def test_columns_that_are_not_read_are_counted(workspace, read, refusal):
    """Unread columns are counted from the file's statistics; a refused column is
    allowed if it has no values.
    """
    table = pa.table({"text": ["a", "b", "c"], "url": ["u", None, "u"], "meta": [[1], [], None]})
    pq.write_table(table, workspace / "a.parquet", row_group_size=2)
    parquet = ParquetSource(kind="parquet", path="a.parquet")
    assert read(parquet).unread_keys == {"url": 2, "meta": 3}
    empty = table.append_column("loss_mask", pa.nulls(3, pa.int64()))
    pq.write_table(empty, workspace / "a.parquet")
    assert read(parquet).records == ["a", "b", "c"]
    pq.write_table(table.append_column("loss_mask", pa.array([[1], None, None])), workspace / "a.parquet")
    assert "'loss_mask' holds a value that kind: parquet does not read" in refusal(parquet)
    rows = [
        {"messages": TALK, "id": 1, "images": None, "label": "x"},
        {"messages": TALK, "id": 2, "label": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), workspace / "c.parquet")
    found = read(ChatSource(kind="chat", path="c.parquet"))
    assert len(found.records) == 2 and found.unread_keys == {"id": 2, "label": 1}


def test_two_columns_of_one_name(workspace, refusal):
    """Two columns with the same name, as in joined tables, are refused by position if that name is read."""

    def write(*names):
        values = {"text": ["a"], "id": [1], "input_ids": [[1]], "messages": [TALK]}
        arrays = [pa.array(values.get(name, ["a"])) for name in names]
        pq.write_table(pa.Table.from_arrays(arrays, list(names)), workspace / "a.parquet")

    for source, names, places in (
        (ParquetSource(kind="parquet", path="a.parquet"), ("text", "id", "text"), "columns 1 and 3"),
        (TokensSource(kind="tokens", path="a.parquet"), ("id", "input_ids", "input_ids"), "columns 2 and 3"),
        (
            PromptCompletionSource(kind="prompt-completion", path="a.parquet"),
            ("prompt", "completion", "completion"),
            "columns 2 and 3",
        ),
        (ChatSource(kind="chat", path="a.parquet"), ("messages", "messages"), "columns 1 and 2"),
    ):
        write(*names)
        assert f"{places} have the same name {names[-1]!r}" in refusal(source)
    write("text", "id", "id")
    parquet = ParquetSource(kind="parquet", path="a.parquet")
    assert [*open_source(parquet).documents()] == ["a"]


def test_names_without_end_are_counted_together():
    """Above a limit of different unread keys in a part, further keys are counted together."""
    tally = Tally()
    for number in range(MOST_KEYS + 5):
        tally.add_unread([f"key{number}"])
    assert len(tally.unread_keys) == MOST_KEYS + 1 and tally.unread_keys[OTHER_KEYS] == 5


# -- Random records ----------------------------------------------------------------------------------------

# Keys in records of public data sets, apart from their format's own, with realistic values. SEEN is replaced
# by a word of the random record, so that the test can find a used value in the text.
SEEN = "WORD"
CALLED = {"name": SEEN, "arguments": "{}"}
PUBLIC = [
    ("id prompt_id conversation_id hash idx", ["a1", 7, "", None]),
    ("source dataset category subcategory task topic lang", [SEEN, "", None]),
    ("model model_name generator license url title timestamp", [SEEN, None]),
    ("score quality num_turns tokens score_chosen margin", [0, 3, 0.5, None]),
    ("skip_prompt_formatting redacted toxic", [True, False, None]),
    ("metadata detoxify", [{"a": SEEN}, {"a": None}, {}]),
    ("system system_prompt reasoning_content thinking context", [SEEN, "", None]),
    ("tools functions", [[{"name": SEEN}], f'[{{"name": "{SEEN}"}}]', "[]", [], None]),
    ("images videos audios documents", [[SEEN], [], None]),
    ("history", [[[SEEN, SEEN]], [], None]),
    ("tool_calls", [[{"function": CALLED}], [], None]),
    ("function_call", [CALLED, None]),
    ("name tool_call_id avatarUrl", [SEEN, None]),
    ("train training weight loss masked", [True, False, 0, 1, 0.5, None]),
    ("train_detail loss_mask labels", [[0, 1], [], None]),
    ("label kto_tag is_masked", [True, False, SEEN, 2, None]),
    ("chat_template_kwargs", [{"enable_thinking": False}, {"enable_thinking": None}, None]),
    ("rejected_response", [SEEN, None]),
]
MARKED = ("train", "training", "weight", "loss", "masked", "loss_mask")
PUBLIC_KEYS = {key: values for keys, values in PUBLIC for key in keys.split()}
DRAWN = {
    **{kind: (record, {}) for kind, record in BASE.items()},
    "chat with templates": (BASE["chat"], TEMPLATES),
    "alpaca with a template": (BASE["alpaca"], {"template": "{system}{instruction}{input}"}),
}


def accounted(changed, kind, settings, key, value, seen) -> str | None:
    """Return how a random record's key was handled: refused, counted or used; None
    if it was ignored silently.
    """
    pieces, tally = read_record(kind, changed, **settings)
    if tally.problems:
        return "refused" if key in tally.problems[0].what else None
    if tally.unread_keys[key] == 1 or tally.unread_keys[f"messages[].{key}"] == 1:
        return "counted"
    if key in MARKED:
        (place,) = (place for place, message in enumerate(changed["messages"]) if key in message)
        is_in_loss = ("a\n", "b\n")[place] in loss_of(pieces or ())
        return "used" if is_in_loss == (bool(value) != (key == "masked")) else None
    return "used" if seen in "".join(text for text, _ in pieces) else None


def test_no_key_of_public_data_sets_is_dropped_in_silence():
    """60 keys of public data sets, in records or messages, with and without values,
    are never ignored silently.
    """
    assert len(PUBLIC_KEYS) == 60
    draw = random.Random(29)
    outcomes: Counter[str] = Counter()
    for number in range(num_cases(3000)):
        name, (record, settings) = draw.choices(list(DRAWN.items()), [1, 1, 2, 1, 4, 1])[0]
        kind, key = name.partition(" ")[0], draw.choice(list(PUBLIC_KEYS))
        seen = f"word{number}"
        value = json.loads(
            json.dumps(draw.choice(PUBLIC_KEYS[key][: draw.choice((1, 9))])).replace(SEEN, seen)
        )
        changed = json.loads(json.dumps(record))
        if kind == "chat" and draw.random() < 0.5:
            changed["messages"][draw.choice((0, 1))][key] = value
        else:
            changed[key] = value
        # Other keys next to it must not hide it.
        for other in draw.sample([name for name in ("id", "url", "title") if name != key], draw.randrange(3)):
            changed[other] = "x"
        pieces, tally = read_record(kind, changed, **settings)
        if not holds_value(value):
            assert pieces is not None and key not in tally.unread_keys, (kind, key, value)
            outcomes["without a value"] += 1
            continue
        outcome = accounted(changed, kind, settings, key, value, seen)
        assert outcome is not None, (kind, settings, key, changed)
        outcomes[outcome] += 1
    assert min(outcomes[how] for how in ("used", "refused", "counted", "without a value")) > 100, outcomes
