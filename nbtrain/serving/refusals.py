"""Refusals of a request: OpenAI's error object, and whether its client should retry.

Clients decide by status, `code` and message, so these are OpenAI's wherever OpenAI defines them: LiteLLM and
LangChain shorten a prompt after `context_length_exceeded`, and request another key after `invalid_api_key`.
After 408, 409, 429 and 5xx, OpenAI's clients send a request up to three times, unless the header
`x-should-retry` forbids it; an error that would recur must not cost three generations.
"""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from nbtrain.serving.json_response import JSONAnswer

# {status: the type in OpenAI's error object}: a refusal for a full queue counts requests.
TYPES = {429: "requests"}
TRIED_AGAIN = (429, 503)
RETRY_SECONDS = 1
TOO_LONG = "context_length_exceeded"


class Refusal(Exception):
    """An answer with a status other than 200."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the HTTP response, which tells clients whether to retry."""
        headers: Mapping[str, str] = {"x-should-retry": "false"}
        if self.status in TRIED_AGAIN:
            headers = {"retry-after": str(RETRY_SECONDS)}
        elif self.status == 401:
            headers = {"www-authenticate": "Bearer"}
        return JSONAnswer(self.body(), self.status, headers)


def unsupported_parameter(param: str, reason: str) -> Refusal:
    """Return the refusal of one of OpenAI's fields that is not supported here."""
    return Refusal(
        400, f"Unsupported parameter: '{param}' is not supported: {reason}.", param, "unsupported_parameter"
    )


def missing_parameter(param: str, hint: str = "") -> Refusal:
    """Return the refusal of a request without a field that it needs."""
    words = f"Missing required parameter: '{param}'."
    return Refusal(400, f"{words} {hint}".rstrip(), param, "missing_required_parameter")


def unsupported_value(param: str, value: object, reason: str) -> Refusal:
    """Return the refusal of a value that OpenAI's models support and this model does not."""
    return Refusal(
        400,
        f"Unsupported value: '{param}' does not support {value} with this model: {reason}.",
        param,
        "unsupported_value",
    )


def unknown_model(name: str | None, served: str) -> Refusal:
    """Return the refusal of a request for an unknown model; `served` is a sentence on the known models."""
    return Refusal(
        404,
        f"The model `{name}` does not exist or you do not have access to it. {served}",
        "model",
        "model_not_found",
    )


def too_long(positions: int, prompt_tokens: int, max_new_tokens: int, is_chat: bool) -> Refusal:
    """Return the refusal of a prompt that leaves no room for the new tokens, with OpenAI's message.

    LiteLLM searches for this wording. LangChain searches for the code in the error's text, which openai 3
    builds from the message alone, so the message ends with the code.
    """
    most = f"This model's maximum context length is {positions} tokens"
    both = f"you requested {prompt_tokens + max_new_tokens} tokens"
    if not is_chat:
        words = (
            f"{most}, however {both} ({prompt_tokens} in your prompt; {max_new_tokens} for the completion). "
            "Please reduce your prompt; or completion length."
        )
    elif prompt_tokens > positions:
        words = (
            f"{most}. However, your messages resulted in {prompt_tokens} tokens. "
            "Please reduce the length of the messages."
        )
    else:
        words = (
            f"{most}. However, {both} ({prompt_tokens} in the messages, {max_new_tokens} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    return Refusal(400, f"{words} ({TOO_LONG})", "messages" if is_chat else "prompt", TOO_LONG)
