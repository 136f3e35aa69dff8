"""What a request is refused with: OpenAI's error object, and whether its client should try again.

OpenAI's clients send 408, 409, 429 and 5xx three times in all, unless `x-should-retry` says no: an error that
the same request would meet again must not cost three generations.
"""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from nbtrain.serving.json_response import JSONAnswer

TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
TRIED_AGAIN = (429, 503)
RETRY_SECONDS = 1


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The answer, which says to clients whether another try is of use."""
        headers: Mapping[str, str] = {"x-should-retry": "false"}
        if self.status in TRIED_AGAIN:
            headers = {"retry-after": str(RETRY_SECONDS)}
        elif self.status == 401:
            headers = {"www-authenticate": "Bearer"}
        return JSONAnswer(self.body(), self.status, headers)


def not_supported(param: str, what: str) -> Refusal:
    """For a field of OpenAI's that means nothing here."""
    return Refusal(400, f"{param} is not supported: {what}.", param, "unsupported_parameter")
