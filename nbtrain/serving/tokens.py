"""The token that every request must send: generated at start or given by the user, compared in constant time.

It is accepted in the form of OpenAI's clients (Authorization: Bearer TOKEN), of Jupyter's (Authorization:
token TOKEN), and as ?token=TOKEN for pages and clients that cannot set a header.
"""

import hmac
import os
import secrets
import stat
from pathlib import Path
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from nbtrain.base.errors import ConfigError
from nbtrain.serving.refusals import Refusal

VARIABLE = "NBTRAIN_SERVE_TOKEN"
LEAST_CHARS = 16
# Route that reports only that the server runs, for monitoring.
OPEN_PATHS = ("/health",)


def new_token() -> str:
    """Return a random token of 192 bits."""
    return secrets.token_hex(24)


def token_of(file: str | None) -> tuple[str, str | None]:
    """Return (token, source): from a file, otherwise from NBTRAIN_SERVE_TOKEN, otherwise a new one (source
    None).

    Raises ConfigError for a file that does not exist or that others may read, and for a token that is too
    short.
    """
    if file is None:
        if not (token := os.environ.get(VARIABLE, "")):
            return new_token(), None
        place = VARIABLE
    else:
        path, place = Path(file), f"--token-file {file}"
        try:
            mode = path.stat().st_mode
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(
                f"{place}: cannot be read ({reason}): name a file that holds the token."
            ) from None
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            raise ConfigError(f"{place}: other users can read it; run `chmod 600 {file}`.")
    if len(token) < LEAST_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{place}: the token must be at least {LEAST_CHARS} characters of visible ASCII without spaces; "
            f"this one has {len(token)} characters. `openssl rand -hex 24` makes one."
        )
    return token, place


class TokenRequired:
    """Middleware that accepts only requests with the token."""

    def __init__(self, app: ASGIApp, token: str):
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        brought = _brought(scope)
        if any(hmac.compare_digest(token, self.token) for token in brought):
            await self.app(scope, receive, send)
            return
        what = "Incorrect API key provided" if brought else "You didn't provide an API key"
        message = f"{what}: send the header `Authorization: Bearer TOKEN`, with the token of this server."
        await Refusal(401, message, code="invalid_api_key").response()(scope, receive, send)


def _brought(scope: Scope) -> list[bytes]:
    """Return the tokens in a request's header and address."""
    headers = [value for name, value in scope["headers"] if name == b"authorization"]
    query = parse_qs(scope["query_string"].decode("latin-1"))
    tokens = [value.partition(b" ")[2].strip() for value in headers]
    return [*tokens, *(value.encode() for value in query.get("token", ()))]
