"""Redaction of URLs for messages, logs and manifests: everything in them that may be a secret is removed."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"
WITHOUT_BLANKS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")


def redacted(address: str) -> str:
    """Return a URL without user, password, query values and fragment, any of which may be a secret."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return HIDDEN
    scheme, netloc, path = parts.scheme, parts.netloc, parts.path
    if "@" in path:
        # A "/" in a password ends the host too early. Without a host, everything is part of the path.
        scheme, netloc, path = scheme if netloc else "", f"{HIDDEN}@{path.rpartition('@')[2]}", ""
    elif "@" in netloc:
        netloc = f"{HIDDEN}@{netloc.rpartition('@')[2]}"
    elif "@" in address and not (path and _has_port(netloc)):
        return HIDDEN  # a password that contains ? or #
    query = "&".join(
        f"{re.split('=', pair, maxsplit=1)[0]}={HIDDEN}" if "=" in pair else HIDDEN
        for pair in parts.query.split("&")
    )
    shown = urlunsplit((scheme, netloc, path, query if parts.query else "", ""))
    return shown if scheme else shown.removeprefix("//")


def _has_port(netloc: str) -> bool:
    return re.fullmatch(r"[^:]*(:[0-9]*)?|\[.*\](:[0-9]*)?", netloc) is not None


def without_secrets(value: Any, key: str = "") -> Any:
    """Return the value of `key` in a run YAML with all URLs in it redacted, however deeply nested."""
    if isinstance(value, str):
        return redacted(value) if key == "mirror" else text_without_secrets(value)
    if isinstance(value, Mapping):
        return {name: without_secrets(entry, str(name)) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(entry) for entry in value]
    return value


def text_without_secrets(text: str) -> str:
    """Return a text with every URL in it redacted.

    If it is not clear where a URL ends, the text after it is removed too.
    """
    if "://" not in text:
        return text
    if WITHOUT_BLANKS.fullmatch(text):
        return redacted(text)
    text = re.sub(r"://.*@", f"://{HIDDEN}@", text, flags=re.DOTALL)
    text = re.sub(r"(://[^\s#]*)#\S+", rf"\g<1>#{HIDDEN}", text)
    text = re.sub(r"(://[^\s?]*\?)([^\s=&]+)(?=[\s&]|$)", rf"\g<1>{HIDDEN}", text)
    return re.sub(r"([?&][^=&\s]*=)[^&\s]+", rf"\g<1>{HIDDEN}", text)
