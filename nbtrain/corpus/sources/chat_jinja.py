"""The prompt of a run's conversations as Hugging Face's chat_template, for programs that serve its export.

It writes the text that training saw before an answer, and refuses what nbtrain's own server refuses. Other
programs encode that text as a whole; training encoded learnt and other text apart. The tokens differ only if
one of them lies across such a border.
"""

import json
from collections.abc import Iterable, Mapping

from nbtrain.config.sources import AlpacaSource, ChatSource, PreferenceSource, SourceModel
from nbtrain.corpus.sources.chat import answering_role, known_roles, learnt_roles
from nbtrain.corpus.sources.templates import ALPACA_WITHOUT_INPUT, Template

CONVERSATION = """\
{{%- for message in messages %}}
    {{%- if message["role"] not in {roles} %}}
        {{{{- raise_exception("the role of a message must be one of {known}") }}}}
    {{%- endif %}}
    {{{{- {message} }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
    {{{{- {header} }}}}
{{%- endif %}}"""
QUESTION = """\
{{%- if messages | length != 1 or messages[0]["role"] != "user" %}}
    {{{{- raise_exception("send one message, of the role user: the model has learnt single instructions") }}}}
{{%- endif %}}
{{{{- {prompt} }}}}"""

Talks = ChatSource | PreferenceSource | AlpacaSource


def talks_of(sources: Iterable[SourceModel]) -> Talks | None:
    """The source whose template a chat has: the first conversations, or else the first instructions."""
    found = list(sources)
    for kinds in ((ChatSource, PreferenceSource), (AlpacaSource,)):
        for source in found:
            if isinstance(source, kinds):
                return source
    return None


def chat_jinja(source: Talks) -> str:
    """The chat_template of a source. Jinja as transformers, vLLM and llama.cpp read it."""
    if isinstance(source, AlpacaSource):
        template = Template(source.template or ALPACA_WITHOUT_INPUT, ("instruction", "input"))
        fields = {"instruction": 'messages[0]["content"]', "input": '""'}
        return QUESTION.format(prompt=_expression(template, fields))
    header = Template(source.template.partition("{content}")[0], ("role",))
    message = Template(source.template, ("role", "content"))
    roles = known_roles(source)
    return CONVERSATION.format(
        roles=_literal(roles),
        known=", ".join(roles),
        message=_expression(message, {"role": 'message["role"]', "content": 'message["content"]'}),
        header=_literal(header.render({"role": answering_role(learnt_roles(source))})),
    )


def _expression(template: Template, fields: Mapping[str, str]) -> str:
    """A Jinja expression of a template's text, in which each field is an expression."""
    parts = [fields[part] if is_field else _literal(part) for part, is_field in template.parts if part]
    return " + ".join(parts)


def _literal(value: object) -> str:
    # Jinja reads the escapes of JSON but for those of characters beyond the first 65,536.
    return json.dumps(value, ensure_ascii=False)
