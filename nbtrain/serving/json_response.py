"""JSON answers by orjson."""

from typing import Any

import orjson
from starlette.responses import Response


class JSONAnswer(Response):
    """An object of plain values; text that is no Unicode becomes U+FFFD."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
