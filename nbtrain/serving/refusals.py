"""Error responses: OpenAI's error object, and whether the client should retry.

Clients react to the status, `code` and message, so these are the same as OpenAI's wherever OpenAI defines
them. For example, LiteLLM and LangChain shorten the prompt after `context_length_exceeded` and request
another key after `invalid_api_key`. After 408, 409, 429 and 5xx, OpenAI's clients send a request up to three
times, unless the header `x-should-retry` forbids it. The header prevents three generations that all end in
the same error.
"""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from nbtrain.serving.json_response import JSONAnswer

# `type` in OpenAI's error object for the status codes that have their own type. The other codes have
# server_error (from 500 on) or invalid_request_error.
TYPES = {429: "requests"}
TRIED_AGAIN = (429, 503)
RETRY_SECONDS = 1
TOO_LONG = "context_length_exceeded"


class Refusal(Exception):
    """An error response: a status other than 200, with a message."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the HTTP response, with a header that tells the client whether to retry."""
        headers: Mapping[str, str] = {"x-should-retry": "false"}
        if self.status in TRIED_AGAIN:
            headers = {"retry-after": str(RETRY_SECONDS)}
        elif self.status == 401:
            headers = {"www-authenticate": "Bearer"}
        return JSONAnswer(self.body(), self.status, headers)


def unsupported_parameter(param: str, reason: str) -> Refusal:
    """Return the refusal of a field of OpenAI's API that this server does not support."""
    return Refusal(
        400, f"Unsupported parameter: '{param}' is not supported: {reason}.", param, "unsupported_parameter"
    )


def missing_parameter(param: str, hint: str = "") -> Refusal:
    """Return the refusal of a request that lacks a required field."""
    words = f"Missing required parameter: '{param}'."
    return Refusal(400, f"{words} {hint}".rstrip(), param, "missing_required_parameter")


def unsupported_value(param: str, value: object, reason: str) -> Refusal:
    """Return the refusal of a value that OpenAI's models support but this model does not."""
    return Refusal(
        400,
        f"Unsupported value: '{param}' does not support {value} with this model: {reason}.",
        param,
        "unsupported_value",
    )


def unknown_model(name: str | None, served: str) -> Refusal:
    """Return the refusal of a request for an unknown model. `served` is a sentence that lists the models."""
    return Refusal(
        404,
        f"The model `{name}` does not exist or you do not have access to it. {served}",
        "model",
        "model_not_found",
    )


def too_long(positions: int, prompt_tokens: int, max_new_tokens: int, is_chat: bool) -> Refusal:
    """Return the refusal of a request that exceeds the model's positions, with OpenAI's message.

    LiteLLM searches for this wording. LangChain searches the error's text for the code; version 3 of the
    openai package builds that text from the message alone, so the message ends with the code.
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
