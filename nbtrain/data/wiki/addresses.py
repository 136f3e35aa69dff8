"""Addresses as messages, logs and manifests may show them."""

import re
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"


def redacted(address: str) -> str:
    """Without user, password, the values of the query and the fragment: any of them may be a secret."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return HIDDEN
    netloc = f"{HIDDEN}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    query = "&".join(
        f"{re.split('=', pair, maxsplit=1)[0]}={HIDDEN}" if "=" in pair else HIDDEN
        for pair in parts.query.split("&")
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query if parts.query else "", ""))
