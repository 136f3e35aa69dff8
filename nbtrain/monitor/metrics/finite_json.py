"""JSON without NaN and Inf, which become null."""

import json
import math
from typing import Any

import orjson


def finite(value: Any) -> Any:
    """Return `value` with None for NaN and Inf, which JSON does not support."""
    try:
        # Encoding and decoding takes a tenth of the time of visiting each part here.
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return _finite(value)


def encoded(value: Any) -> bytes:
    """Return the JSON of `value`, with NaN and Inf as null."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Values that orjson refuses: numeric keys, half a surrogate pair in a file's name.
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
