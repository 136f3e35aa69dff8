"""JSON in which NaN and Inf become null."""

import json
import math
from typing import Any

import orjson


def finite(value: Any) -> Any:
    """Return a value with NaN and Inf replaced by None, because JSON does not support them."""
    try:
        # Encoding and decoding takes a tenth of the time of visiting each part in Python.
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return _finite(value)


def encoded(value: Any) -> bytes:
    """Encode a value as JSON, with NaN and Inf as null."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # orjson rejects numeric keys, and half a surrogate pair in a file name.
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
