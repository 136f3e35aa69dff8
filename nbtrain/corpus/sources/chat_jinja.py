"""Converts a source's conversation template to a Hugging Face chat_template, for serving an exported model.

The template produces the text that training saw before an answer, and raises an error where nbtrain's own
server would reject the request. Other programs encode that text as a whole, including its special tokens;
training encoded the text inside and outside the loss separately, as plain characters. An export therefore
checks on a short conversation whether both ways give the same tokens.
"""

import json
from collections.abc import Iterable, Mapping

from nbtrain.config.sections.sources import AlpacaSource, ChatSource, PreferenceSource, SourceModel
from nbtrain.corpus.sources.chat import answering_role, known_roles, learnt_roles
from nbtrain.corpus.sources.templates import ALPACA_WITHOUT_INPUT, Template

CONVERSATION = """\
{{%- for message in messages %}}
    {{%- set role = {role} %}}
    {{%- if role not in {roles} %}}
        {{{{- raise_exception({refusal}) }}}}
    {{%- endif %}}
    {{{{- {message} }}}}
    {{%- if loop.last and role in {trained_roles} and not add_generation_prompt %}}
        {{{{- {end} }}}}
    {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
    {{{{- {header} }}}}
{{%- endif %}}"""
QUESTION = """\
{{%- set answered = messages | length == 2 and not add_generation_prompt %}}
{{%- if (messages | length != 1 and not answered) or messages[0]["role"] != "user" or
    (answered and messages[1]["role"] != "assistant") %}}
    {{{{- raise_exception("send one message with the role user: the model was trained on instructions") }}}}
{{%- endif %}}
{{{{- {prompt} }}}}
{{%- if answered %}}
    {{{{- messages[1]["content"] + {end} }}}}
{{%- endif %}}"""

FIELDS = ("instruction", "input")

Talks = ChatSource | PreferenceSource | AlpacaSource


def talks_of(sources: Iterable[SourceModel]) -> Talks | None:
    """Return the source whose template is used for chat; None if no source has a template.

    That is the first conversation source, or else the first instruction source.
    """
    found = list(sources)
    for kinds in ((ChatSource, PreferenceSource), (AlpacaSource,)):
        for source in found:
            if isinstance(source, kinds):
                return source
    return None


def chat_jinja(source: Talks, eod_token: str) -> str:
    """Return the chat_template of a source, in the Jinja dialect that transformers, vLLM and llama.cpp read.

    As in training, a conversation that ends with an answer is closed by `eod_token`, so that further training
    with this template teaches the model to stop. A conversation without an answer is never closed.
    """
    if isinstance(source, AlpacaSource):
        template = Template(source.template or ALPACA_WITHOUT_INPUT, FIELDS)
        fields = {"instruction": 'messages[0]["content"]', "input": '""'}
        return QUESTION.format(prompt=_expression(template, fields), end=_literal(eod_token))
    header = Template(source.template.partition("{content}")[0], ("role",))
    message = Template(source.template, ("role", "content"))
    roles = known_roles(source)
    role = 'message["role"]'
    return CONVERSATION.format(
        role=f"{_literal(source.roles)}.get({role}, {role})" if source.roles else role,
        roles=_literal(roles),
        refusal=_literal(f"the role of a message must be one of {', '.join(roles)}"),
        message=_expression(message, {"role": "role", "content": 'message["content"]'}),
        header=_literal(header.render({"role": answering_role(learnt_roles(source))})),
        trained_roles=_literal(learnt_roles(source)),
        end=_literal(eod_token),
    )


def text_of_template(source: SourceModel) -> str:
    """Return the text that a source's template adds to messages of all roles; "" without a template."""
    if isinstance(source, AlpacaSource):
        prompt = Template(source.template or ALPACA_WITHOUT_INPUT, FIELDS)
        return prompt.render(dict.fromkeys(FIELDS, ""))
    if not isinstance(source, ChatSource | PreferenceSource):
        return ""
    message = Template(source.template, ("role", "content"))
    return "\n".join(message.render({"role": role, "content": ""}) for role in known_roles(source))


def pieces_of(source: Talks) -> list[str]:
    """Return the pieces of a short conversation (question, answer, question) as training encodes them."""
    if isinstance(source, AlpacaSource):
        return [
            Template(source.template or ALPACA_WITHOUT_INPUT, FIELDS).render(
                {"instruction": "a", "input": ""}
            )
        ]
    header, _, rest = source.template.partition("{content}")
    answers = answering_role(learnt_roles(source))
    asks = source.roles.get("user", "user")

    def written(text: str, role: str, content: str = "") -> str:
        return Template(text, ("role", "content")).render({"role": role, "content": content})

    question = written(source.template, asks, "One") + written(header, answers)
    return [question, written("{content}" + rest, answers, "Two"), question]


def _expression(template: Template, fields: Mapping[str, str]) -> str:
    """Return a Jinja expression for a template's text, with each field replaced by its expression."""
    parts = [fields[part] if is_field else _literal(part) for part, is_field in template.parts if part]
    return " + ".join(parts)


def _literal(value: object) -> str:
    # Jinja understands JSON escapes, except for characters beyond U+FFFF; so none are escaped.
    return json.dumps(value, ensure_ascii=False)
