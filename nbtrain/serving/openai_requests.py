"""Requests in OpenAI's format: supported fields, their conversion for the engine, and refused fields.

In addition to OpenAI's fields, /v1/completions and /v1/chat/completions accept four of vLLM's fields: top_k,
min_p, repetition_penalty and ignore_eos.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.terminal import shortened
from nbtrain.config.generation import MOST_CHOICES, Generation
from nbtrain.serving.refusals import Refusal, missing_parameter, unsupported_parameter, unsupported_value

# Accepted and ignored, because they do not affect the generated text.
WITHOUT_EFFECT = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    ]
)
MOST_PROMPTS = 128
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for max_tokens."""

UNIONS = {
    "prompt": "must be a string, a list of strings, a list of token ids (integers >= 0), or a list of lists "
    "of token ids",
    "stop": "must be a string or a list of strings",
}
"""Messages for fields that accept several types; pydantic's message would name only the first type."""
BOUNDS = {
    "greater_than_equal": ("ge", ("below_min", ">="), "below minimum"),
    "less_than_equal": ("le", ("above_max", "<="), "above maximum"),
}
"""OpenAI's wording for numbers out of bounds, by pydantic's error type.

Each value is (key of the bound in pydantic's error, (end of OpenAI's error code, comparison sign), words in
OpenAI's message).
"""
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a streamed response."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class Common(BaseModel):
    """Fields that completion and chat requests share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None

    def check(self) -> None:
        """Raise Refusal for settings that this server does not support."""

    def generation(self, max_new_tokens: int, **more: Any) -> Generation:
        """Return the engine's generation settings. Raises Refusal if a value is out of range."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        top_k = self.top_k or 0
        try:
            return Generation(
                max_new_tokens=max_new_tokens,
                temperature=_or(self.temperature, 1.0),
                # In vLLM, -1 means no limit.
                top_k=0 if top_k == -1 else top_k,
                top_p=_or(self.top_p, 1.0),
                min_p=_or(self.min_p, 0.0),
                repetition_penalty=_or(self.repetition_penalty, 1.0),
                presence_penalty=_or(self.presence_penalty, 0.0),
                frequency_penalty=_or(self.frequency_penalty, 0.0),
                logit_bias=tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items()),
                n=self.n or 1,
                stop=(*stop, *more.pop("also_stop", ())),
                ignore_eod=bool(self.ignore_eos),
                seed=self.seed,
                **more,
            )
        except ConfigError as error:
            raise Refusal(400, str(error), error.findings[0].key, "invalid_value") from None
        except ValueError:
            raise Refusal(
                400, "the keys of logit_bias must be token ids.", "logit_bias", "invalid_value"
            ) from None


class CompletionRequest(Common):
    """The body of POST /v1/completions."""

    prompt: str | list[str] | Tokens | list[Tokens] = Field(union_mode="left_to_right")
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
    suffix: str | None = None

    def check(self) -> None:
        """Raise Refusal for settings that this server does not support."""
        if self.suffix:
            raise unsupported_parameter("suffix", "the model can only continue a text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            hint = "request n texts, or use beam search with `nbtrain generate --num-beams`"
            raise unsupported_value("best_of", self.best_of, hint)

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as text or token ids. Raises Refusal if there are too many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        found = list(self.prompt)
        if not 1 <= len(found) <= MOST_PROMPTS:
            raise _wrong_length("prompt", len(found), 1, MOST_PROMPTS)
        return found  # type: ignore[return-value]


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    def as_text(self, number: int) -> dict[str, str]:
        """Return {"role", "content"}. Raises Refusal for images, audio and tool calls."""
        if self.tool_calls or self.function_call:
            raise unsupported_parameter(f"messages[{number}].tool_calls", "the model does not call tools")
        # OpenAI's API allows only an assistant's message to omit the content.
        if self.content is None and self.role != "assistant":
            raise missing_parameter(f"messages[{number}].content", "Set it to the text of the message.")
        content = self.content or ""
        if not isinstance(content, str):
            for part in content:
                if part.type != "text":
                    what = f"the model reads only text, not {part.type}"
                    raise unsupported_value(f"messages[{number}].content", f"'{part.type}'", what)
            content = "".join(part.text for part in content)
        return {"role": self.role, "content": content}


class ResponseFormat(BaseModel):
    """The response format that a client requests."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str


class ChatRequest(Common):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raise Refusal for settings that this server does not support."""
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise unsupported_parameter(name, "the model does not call tools")
        if self.response_format is not None and (kind := self.response_format.type) != "text":
            raise Refusal(
                400,
                f"Invalid parameter: 'response_format' of type '{shortened(kind)}' is not supported with "
                "this model: it only writes plain text.",
                "response_format",
                "unsupported_value",
            )
        if (self.modalities and "audio" in self.modalities) or self.audio is not None:
            raise unsupported_parameter("audio", "the model only writes text")
        for name in ("prediction", "reasoning_effort", "verbosity", "web_search_options"):
            if getattr(self, name) is not None:
                raise unsupported_parameter(name, "the model has no equivalent setting")
        if self.top_logprobs is not None and not self.logprobs:
            words = "Invalid value for 'top_logprobs': it is only allowed with 'logprobs' set to true."
            raise Refusal(400, words, "top_logprobs", "invalid_value")

    @property
    def most_tokens(self) -> int | None:
        """Maximum number of new tokens: max_completion_tokens or, if that is not set, max_tokens."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def read(kind: type[Common], body: Any) -> Any:
    """Validate a parsed JSON body as a request. Raises Refusal 400 with the name of the invalid field."""
    if not isinstance(body, dict):
        raise Refusal(400, "We could not parse the JSON body of your request: it must be a JSON object.")
    body = {name: value for name, value in body.items() if name not in WITHOUT_EFFECT}
    try:
        found = kind.model_validate(body)
    except ValidationError as error:
        # pydantic reports one error for each alternative of a union; the first error is enough.
        raise _invalid(error.errors(include_url=False)[0]) from None
    found.check()
    return found


def _invalid(problem: Any) -> Refusal:
    """Convert a pydantic error to a refusal with OpenAI's code and wording."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    places = [str(part) for part in problem["loc"]]
    param = _param(place for place in places if not place.startswith(("list[", "constrained", "str")))
    name = places[0] if places else None
    if kind == "missing":
        return missing_parameter(param)
    if kind == "extra_forbidden":
        return Refusal(400, f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    if name in UNIONS:
        if value == []:
            return _wrong_length(name, 0, 1)
        return Refusal(400, f"Invalid type for '{name}': {UNIONS[name]}.", name, "invalid_type")
    if kind in BOUNDS:
        key, code, words = BOUNDS[kind]
        sort = "integer" if isinstance(value, int) else "decimal"
        return Refusal(
            400,
            f"Invalid '{param}': {sort} {words} value. Expected a value {code[1]} {context[key]}, but got "
            f"{shortened(str(value))} instead.",
            param,
            f"{sort}_{code[0]}_value",
        )
    if kind in ("too_short", "too_long"):
        return _wrong_length(
            param, context["actual_length"], context.get("min_length"), context.get("max_length")
        )
    if kind == "literal_error":
        return Refusal(
            400,
            f"Invalid value: {shortened(repr(value))}. Supported values are: {context['expected']}.",
            param,
            "invalid_value",
        )
    words = problem["msg"][0].lower() + problem["msg"][1:]
    return Refusal(400, f"Invalid type for '{param}': {words}.", param, "invalid_type")


def _param(places: Iterable[str]) -> str:
    """Return a field's path in OpenAI's notation, such as messages[0].role."""
    path = ""
    for place in places:
        path += f"[{place}]" if place.isdigit() else f".{place}" if path else place
    return path


def _wrong_length(param: str, length: int, least: int | None = None, most: int | None = None) -> Refusal:
    if length == 0:
        words = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        return Refusal(400, f"Invalid '{param}': {words}", param, "empty_array")
    is_long = most is not None and length > most
    words = f"array too {'long' if is_long else 'short'}. Expected an array with "
    words += f"maximum length {most}" if is_long else f"minimum length {least}"
    code = "array_above_max_length" if is_long else "array_below_min_length"
    return Refusal(400, f"Invalid '{param}': {words}, but got {length} instead.", param, code)
