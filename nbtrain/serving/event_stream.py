"""Sends server-sent events to one client; the stream ends if the client disconnects or stops reading.

Starlette's StreamingResponse is not sufficient: an iterator that never waits does not notice that its client
has disconnected, and the stream would wait forever for a client that stalls.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_SECONDS = 15.0


class ClientGone(Exception):
    """Raised if the client has disconnected or does not read."""


def event(content: Any) -> bytes:
    """Format an event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


class EventStream(Response):
    """A streamed answer: pieces as they arrive, and occasional comments while there are none."""

    def __init__(self, pieces: AsyncIterator[bytes], write_seconds: float, gone: Callable[[], None]):
        """Store the pieces. If the client is dropped, `gone` is called and the pieces are closed."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._pieces, self._write_seconds, self._gone = pieces, write_seconds, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        left = asyncio.ensure_future(disconnected(receive))
        pieces = aiter(self._pieces)
        piece: asyncio.Future | None = None
        try:
            while True:
                piece = piece or asyncio.ensure_future(anext(pieces, None))  # type: ignore[arg-type]
                done, _ = await asyncio.wait(
                    {piece, left}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if left in done:
                    raise ClientGone
                body = piece.result() if piece in done else PING
                if piece in done:
                    piece = None
                    if body is None:
                        break
                await self._send(send, body)
            await self._send(send, b"", more=False)
        except ClientGone:
            self._gone()
        finally:
            left.cancel()
            if piece is not None:
                piece.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await piece
            await self._pieces.aclose()  # type: ignore[attr-defined]

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except (TimeoutError, OSError):
            # Without a last piece, uvicorn closes the connection.
            raise ClientGone from None


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
