"""The exported chat_template renders the same text as training and serving do."""

import pytest

from nbtrain.config.load import load
from nbtrain.corpus.sources.alpaca import AlpacaReader
from nbtrain.corpus.sources.chat import ChatReader
from nbtrain.corpus.sources.chat_jinja import chat_jinja, talks_of
from nbtrain.corpus.sources.keys import RecordNotes
from nbtrain.serving.chat import template_of
from nbtrain.serving.refusals import Refusal

END = '<|end\'s "token"|>'
TALK = [
    {"role": "system", "content": "Be {brief}.\n"},
    {"role": "user", "content": " a {{ messages }} {content} <|user|> \\n \"'"},
    {"role": "assistant", "content": "{% if x %}b\u2028\n\n"},
    {"role": "user", "content": "\U0001f600 {# c #}"},
]
CHATS = [
    {},
    {"template": "<|im_start|>{role}\n{content}<|im_end|>\n"},
    {"template": "  [{role}] \"{content}\" '\\n' {{ }} {% raw %} {# #}\U0001f600\t\n\n {role}-%}\n\n"},
    {"template": "{content}\n"},
    {"template": "{role}: {content}"},
    {"learn_roles": ["gpt"]},
    {"learn_roles": ["bot"], "roles": {"chatter": "guest"}},
    {"learn_roles": ['b"o\\t'], "roles": {"x": 'the "boss"\\'}},
    # Gemma's.
    {"template": "<start_of_turn>{role}\n{content}<end_of_turn>\n", "roles": {"assistant": "model"}},
]
ALPACAS = [{}, {"template": "{instruction}\n{input}\n=> "}, {"template": 'Q: "{instruction}"'}]


def sources_of(kind, fields):
    return load(
        "gpt-tiny", {"data.sources": [{"kind": kind, "path": "x.jsonl", **fields}]}, check=False
    ).data.sources


def rendered(template, messages, add_generation_prompt=True):
    chats = pytest.importorskip("transformers.utils.chat_template_utils")
    (text,), _ = chats.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=add_generation_prompt
    )
    return text


def served(kind, fields, messages):
    config = load("gpt-tiny", {"data.sources": [{"kind": kind, "path": "x", **fields}]}, check=False)
    return "".join(template_of(config, None, None, "").prompt(messages).pieces)


@pytest.mark.parametrize("fields", CHATS, ids=str)
@pytest.mark.parametrize("kind", ["chat", "preference"])
def test_a_conversation_is_written_as_it_was_learnt(kind, fields):
    """A conversation that ends with an answer renders as its training example, followed by the end token.

    TRL and transformers add no end token themselves, so fine-tuning with them would not teach it otherwise.
    """
    (source,) = sources_of(kind, fields)
    template = chat_jinja(source, END)
    assert rendered(template, TALK) == served(kind, fields, TALK)
    learnt = fields.get("learn_roles", ["assistant"])[0]
    answer = {"role": "assistant" if learnt == "gpt" else learnt, "content": "So."}
    (chat,) = sources_of("chat", fields)
    example = ChatReader(chat).example({"messages": [*TALK, answer]}, RecordNotes())
    learnt_text = "".join(text for text, _ in example.pieces)
    assert rendered(template, [*TALK, answer], False) == learnt_text + END
    # A question is not followed by the end token, and neither is an answer in the middle.
    assert END not in rendered(template, [*TALK, answer, TALK[1]], False)
    assert rendered(template, [*TALK, answer, TALK[1]]) == served(kind, fields, [*TALK, answer, TALK[1]])


@pytest.mark.parametrize("fields", ALPACAS, ids=str)
def test_an_instruction_is_asked_as_it_was_learnt(fields):
    (source,) = sources_of("alpaca", fields)
    question = [{"role": "user", "content": 'Sort {input} and "{instruction}".\n'}]
    template = chat_jinja(source, END)
    assert rendered(template, question) == served("alpaca", fields, question)
    answered = [*question, {"role": "assistant", "content": "So."}]
    record = {"instruction": question[0]["content"], "output": "So."}
    example = AlpacaReader(source).example(record, RecordNotes())
    assert rendered(template, answered, False) == "".join(text for text, _ in example.pieces) + END
    with pytest.raises(Exception, match="send one message with the role user"):
        rendered(template, answered)


def test_what_the_server_refuses_is_refused():
    """The template rejects what the server rejects: unknown roles, and several turns for instructions."""
    strange = [{"role": "stranger", "content": "a"}]
    for kind, messages, said in (
        ("chat", strange, "must be one of system, developer, user, assistant, tool"),
        ("alpaca", TALK, "send one message with the role user"),
        ("alpaca", TALK[:1], "send one message with the role user"),
    ):
        (source,) = sources_of(kind, {})
        with pytest.raises(Exception, match=said):
            rendered(chat_jinja(source, END), messages)
        with pytest.raises(Refusal, match=said):
            served(kind, {}, messages)
    (guests,) = sources_of("chat", {"roles": {"chatter": "guest"}})
    assert rendered(chat_jinja(guests, END), [{"role": "guest", "content": "a"}]).startswith("<|guest|>\na\n")


def test_conversations_come_before_instructions():
    """A chat source's template wins over an instruction source's, in any order;
    other runs have no template.
    """
    path = {"path": "x.jsonl"}
    mixed = [
        {"kind": "mock"},
        {"kind": "alpaca", **path},
        {"kind": "preference", **path},
        {"kind": "chat", **path},
    ]
    sources = load("gpt-tiny", {"data.sources": mixed}, check=False).data.sources
    assert talks_of(sources) is sources[2]
    assert talks_of(sources[:2]) is sources[1] and talks_of(sources[:1]) is None
