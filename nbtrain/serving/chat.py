"""Builds the prompt for a conversation, in the format that the model was trained on.

The first of these templates that exists is used:

    1. the file given with --chat-template: text with {role} and {content}, as in a run YAML, or Jinja, as in
       Hugging Face's chat_template
    2. the template of the run's `data.sources` (kind: chat, or kind: alpaca for a single question)
    3. the template of an imported model's tokenizer

Training encodes text in the loss separately from other text (docs/finetuning-data.md). Earlier answers in a
conversation are encoded separately here too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import orjson

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.sources import AlpacaSource
from nbtrain.corpus.sources.chat import ASSISTANT, ROLES, answering_role, known_roles, learnt_roles
from nbtrain.corpus.sources.chat_jinja import chat_jinja, talks_of
from nbtrain.corpus.sources.instructions import joined
from nbtrain.corpus.sources.templates import ALPACA_WITHOUT_INPUT, Template
from nbtrain.corpus.tokenizer.beginning import own_token, special_tokens
from nbtrain.corpus.tokenizer.exported import chat_template
from nbtrain.corpus.tokenizer.folder import KEPT, ONE_FILE
from nbtrain.serving.refusals import Refusal

# Marks the end of an unfinished message that the model is to continue.
CONTINUED = "<|the model continues here|> "
JINJA = re.compile(r"\{[{%]")

Message = Mapping[str, str]
"""A message of a conversation: {"role": ..., "content": ...}."""


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt for the model, built from a conversation."""

    pieces: list[str | int]
    """Texts, each encoded separately, and ids of special tokens."""
    stop: tuple[str, ...] = ()
    """Texts that begin the next message; generation stops at the first one."""
    suffix: str = ""
    """Text that the template puts after an answer; removed from the generated text."""


class ChatTemplate(Protocol):
    """Builds prompts from conversations. Raises Refusal for unsupported messages."""

    origin: str
    """Description of where the template was found."""

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt: ...


class RunTemplate:
    """The template of a run's `data.sources`, in which {role} and {content} stand for a message."""

    origin = "from the run's data"

    def __init__(
        self,
        template: str,
        learnt: Sequence[str] = (ASSISTANT,),
        roles: Sequence[str] = ROLES,
        names: Mapping[str, str] | None = None,
    ):
        """Store the template.

        `learnt` are the roles whose messages are in the loss, and `roles` all roles that the template allows.
        `names` maps a role to its name in the template, if that name differs.
        """
        self._names = names or {}
        header, content, rest = template.partition("{content}")
        self._header = Template(header, ("role",))
        self._body = Template(content + rest, ("role", "content"))
        self._rest = Template(rest, ("role",))
        self._learnt, self._roles, self._answers = tuple(learnt), tuple(roles), answering_role(learnt)

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        pieces: list[tuple[str, bool]] = []
        for number, given in enumerate(messages):
            role = self._names.get(given["role"], given["role"])
            if role not in self._roles:
                known = ", ".join(self._roles)
                where = f"messages[{number}].role"
                raise Refusal(
                    400, f"{where} = {given['role']!r} must be one of {known}.", where, "invalid_value"
                )
            message, is_learnt = {**given, "role": role}, role in self._learnt
            pieces += [(self._header.render(message), False), (self._body.render(message), is_learnt)]
        answer = {"role": self._answers}
        pieces.append((self._header.render(answer), False))
        texts = [text for text, _ in joined(pieces).pieces]
        headers = dict.fromkeys(self._header.render({"role": role}).rstrip() for role in self._roles)
        stop = tuple(header for header in headers if len(header) > 1 and "role" in self._header.fields)
        return ChatPrompt([*texts], stop, self._rest.render(answer))


class AlpacaTemplate:
    """Alpaca's prompt for a single question."""

    origin = "from the run's data (kind: alpaca)"

    def __init__(self, template: str | None):
        self._template = Template(template or ALPACA_WITHOUT_INPUT, ("instruction", "input"))

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        if [message["role"] for message in messages] != ["user"]:
            raise Refusal(
                400,
                "this run was trained on single instructions: send one message with the role user.",
                "messages",
                "invalid_value",
            )
        return ChatPrompt([self._template.render({"instruction": messages[0]["content"], "input": ""})])


class JinjaTemplate:
    """A chat_template in Hugging Face's format that uses the special tokens of the run's tokenizer."""

    def __init__(self, source: str, tokenizer: Path, eod_token: str, where: str):
        from jinja2.exceptions import TemplateError

        self.origin = where
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"{where}: the chat template is not valid Jinja ({error}).") from None
        # An imported model's tokenizer has several special tokens; a tokenizer trained by nbtrain has only
        # its end-of-document token.
        self._named = {"bos_token": "", **special_tokens(tokenizer / KEPT), "eos_token": eod_token}
        document = orjson.loads((tokenizer / ONE_FILE).read_bytes())
        added = document.get("added_tokens", ())
        self._special: dict[str, int] = {one["content"]: one["id"] for one in added if one["special"]}

    def text(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the conversation as a single text in which special tokens appear as text."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._named,
            )
        except Exception as error:  # a template's own code may raise anything
            words = f"the chat template rejects these messages: {error}"
            raise Refusal(400, words, "messages", "invalid_value") from None

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        text = self.text(messages)
        if not self._special:
            return ChatPrompt([text])
        longest_first = sorted(self._special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        pieces: list[str | int] = [self._special.get(part, part) for part in parts if part]
        return ChatPrompt(pieces)


def _environment() -> Any:
    """Return a Jinja environment configured as transformers configures it for chat templates."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The {% generation %} extension, which marks answers for training.

        Here it only renders its content.
        """

        tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: Any, indent: int | None = None, **how: Any) -> str:
        # Jinja's own tojson filter escapes HTML characters.
        return json.dumps(value, indent=indent, **{"ensure_ascii": False, **how})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class NoTemplate:
    """Refuses every conversation: neither the run's data nor its tokenizer has a usable chat template."""

    def __init__(self, broken: str | None = None):
        self.origin = "none" if broken is None else f"none ({broken.removesuffix('.')})"
        why = broken or "its data.sources contain no conversations, and its tokenizer has no template."
        self.refusal = f"this run has no chat template: {why}"

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        raise Refusal(
            400,
            f"{self.refusal} Use /v1/completions, or serve the run with --chat-template FILE.",
            code="no_chat_template",
        )


def template_of(config: RunConfig, file: str | None, tokenizer: Path, eod_token: str) -> ChatTemplate:
    """Return the template in the file, otherwise the template of the run's data, otherwise of its tokenizer.

    Raises ConfigError if the file is not a template. An invalid tokenizer template raises nothing: the
    returned NoTemplate then refuses every conversation.
    """
    if file is not None:
        try:
            source = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"--chat-template {file}: the file cannot be read ({reason}).") from None
        if JINJA.search(source):
            ends = own_token(tokenizer / KEPT, "eos_token") or eod_token
            return JinjaTemplate(source, tokenizer, ends, f"--chat-template {file}")
        if "{content}" not in source:
            raise ConfigError(
                f"--chat-template {file}: the file does not contain {{content}}. Write text in which "
                "{role} and {content} stand for a message, for example <|{role}|>{content}<|end|>, or write "
                "a Jinja template."
            )
        template = RunTemplate(source)
        template.origin = f"--chat-template {file}"
        return template
    talks = talks_of(config.data.sources)
    if talks is None:
        return _template_of_tokenizer(tokenizer, eod_token)
    if isinstance(talks, AlpacaSource):
        return AlpacaTemplate(talks.template)
    return RunTemplate(talks.template, learnt_roles(talks), known_roles(talks), talks.roles)


def has_template(config: RunConfig, file: str | None, tokenizer: Path) -> bool:
    """Return whether template_of() would find a usable template. Works without loading the model."""
    if file is not None or talks_of(config.data.sources) is not None:
        return True
    return not isinstance(_template_of_tokenizer(tokenizer, ""), NoTemplate)


class ChatText:
    """Converts conversations to single texts, for programs that handle only plain text."""

    def __init__(self, config: RunConfig, tokenizer: Path, eod_token: str):
        """Load the run's template. Raises ConfigError if the run has no usable chat template."""
        talks = talks_of(config.data.sources)
        self.has_special_tokens = talks is None
        """Whether a special token's text is encoded as that token; False for a template from data.sources."""
        if talks is not None:
            template: ChatTemplate = JinjaTemplate(
                chat_jinja(talks, eod_token), tokenizer, eod_token, "data.sources"
            )
        else:
            template = _template_of_tokenizer(tokenizer, eod_token)
        if isinstance(template, NoTemplate):
            raise ConfigError(template.refusal)
        assert isinstance(template, JinjaTemplate)
        self._template = template
        self.takes_turns = not isinstance(talks, AlpacaSource)
        """Whether a conversation may have several messages."""

    def __call__(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the conversation as a prompt.

        Without add_generation_prompt, the prompt ends with the last message, which the model continues. If
        the template rejects the messages, the messages with the role system are omitted. Raises ConfigError
        if the template rejects the remaining messages too.
        """
        others = [message for message in messages if message["role"] != "system"]
        try:
            return self._text(messages, add_generation_prompt)
        except Refusal as refusal:
            if 0 < len(others) < len(messages):
                return self(others, add_generation_prompt)
            raise ConfigError(refusal.message) from None

    def _text(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        if add_generation_prompt:
            return self._template.text(messages)
        # Find the end of the continued message in the same way as transformers.
        last = {**messages[-1], "content": messages[-1]["content"] + CONTINUED}
        text = self._template.text([*messages[:-1], last], add_generation_prompt=False)
        before, mark, after = text.rpartition(CONTINUED.rstrip())
        if not mark:
            raise Refusal(
                400,
                "the chat template omits part of the last message, so the message cannot be continued.",
                "messages",
            )
        # A template that strips whitespace at the end of a message has stripped the mark's whitespace.
        return before if after.startswith(CONTINUED[-1]) else before.rstrip()


def _template_of_tokenizer(tokenizer: Path, eod_token: str) -> ChatTemplate:
    try:
        if (found := chat_template(tokenizer / KEPT)) is None:
            return NoTemplate()
        source, path = found
        template = JinjaTemplate(
            source, tokenizer, own_token(tokenizer / KEPT, "eos_token") or eod_token, display(path)
        )
    except ConfigError as error:
        return NoTemplate(str(error))
    except ValueError as error:
        return NoTemplate(f"{display(tokenizer / KEPT)}: its chat template cannot be read ({error}).")
    template.origin = f"from the tokenizer, {display(path)}"
    return template


class Suffix:
    """Removes the text that the template puts after an answer (its suffix) from a streamed answer."""

    def __init__(self, suffix: str):
        self._suffix, self._held = suffix, ""

    def add(self, piece: str, is_last: bool) -> str:
        """Add a piece of the answer, and return the text that cannot belong to the suffix."""
        text = self._held + piece
        if is_last:
            self._held = ""
            return text.removesuffix(self._suffix)
        longest = min(len(self._suffix), len(text))
        kept = next((count for count in range(longest, 0, -1) if text.endswith(self._suffix[:count])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]
