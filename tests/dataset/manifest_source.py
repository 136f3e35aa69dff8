"""A source as described in a dataset's manifest. Imports nothing, because ranks of a test import it too."""

from typing import Any

# Keys of a manifest's source that a test does not care about.
SOURCE: dict[str, Any] = {
    "kind": "jsonl",
    "name": "jsonl",
    "licence": None,
    "attribution": None,
    "fingerprint": {},
    "documents": 0,
    "tokens": 0,
    "bytes": 0,
    "unknown_tokens": 0,
    "dropped": {},
    "unread_keys": {},
    "sha256": "",
}
