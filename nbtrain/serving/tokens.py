"""The access token that every request must send: generated at startup or set by the user.

A request may send it as OpenAI's clients do (Authorization: Bearer TOKEN), as Jupyter's clients do
(Authorization: token TOKEN), or as ?token=TOKEN in the URL, for pages and clients that cannot set a header.
Tokens are compared in constant time.
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
# Paths that need no token, because they reveal only whether the server is running.
OPEN_PATHS = ("/health",)


def new_token() -> str:
    """Return a random token of 192 bits."""
    return secrets.token_hex(24)


def token_of(file: str | None) -> tuple[str, str | None]:
    """Return (token, source), read from the file or from NBTRAIN_SERVE_TOKEN, or generated (source None).

    Raises ConfigError if the file cannot be read or if other users can read it, and if the token is too short
    or contains spaces or non-ASCII characters.
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
                f"{place}: the file cannot be read ({reason}). Specify a file that contains the token."
            ) from None
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            raise ConfigError(f"{place}: other users can read the file; run `chmod 600 {file}`.")
    if len(token) < LEAST_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{place}: the token must be at least {LEAST_CHARS} visible ASCII characters without spaces; "
            f"this token has {len(token)} characters. Run `openssl rand -hex 24` to generate one."
        )
    return token, place


class TokenRequired:
    """Middleware that accepts only requests with the token, except on OPEN_PATHS."""

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
        message = f"{what}: send the header `Authorization: Bearer TOKEN` with this server's token."
        await Refusal(401, message, code="invalid_api_key").response()(scope, receive, send)


def _brought(scope: Scope) -> list[bytes]:
    """Return the tokens in a request's headers and URL."""
    headers = [value for name, value in scope["headers"] if name == b"authorization"]
    query = parse_qs(scope["query_string"].decode("latin-1"))
    tokens = [value.partition(b" ")[2].strip() for value in headers]
    return [*tokens, *(value.encode() for value in query.get("token", ()))]
