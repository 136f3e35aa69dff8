"""JSON responses, written by orjson."""

from typing import Any

import orjson
from starlette.responses import Response


class JSONAnswer(Response):
    """A response with an object of plain values; invalid Unicode becomes U+FFFD."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
