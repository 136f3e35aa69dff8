"""JSON responses, serialized by orjson."""

from typing import Any

import orjson
from starlette.responses import Response


class JSONAnswer(Response):
    """A JSON response built from plain values."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
