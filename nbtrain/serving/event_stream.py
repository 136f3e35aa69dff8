"""Sends server-sent events to one client; the stream ends if the client disconnects or stops reading.

Starlette's StreamingResponse is not sufficient, because it would wait forever for a client that stalls.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_SECONDS = 15.0
CHECKS = 10
"""A client that stalls is dropped at most 1/CHECKS of its time late."""


class ClientGone(Exception):
    """Raised if the client has disconnected or does not read."""


def event(content: Any) -> bytes:
    """Format an event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


class EventStream(Response):
    """A streamed answer: pieces as they arrive, and occasional comments while there are none.

    One task writes, and two others watch it for the whole stream, because tasks and timers for each piece
    would cost as much as the piece.
    """

    def __init__(self, pieces: AsyncIterator[bytes], write_seconds: float, gone: Callable[[], None]):
        """Store the pieces. If the client is dropped, `gone` is called and the pieces are closed."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._pieces, self._write_seconds, self._gone = pieces, write_seconds, gone
        self._is_sending, self._since = False, time.monotonic()
        """Whether a piece is being sent; since when, or since when the next piece is awaited."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writing = asyncio.ensure_future(self._write(send))
        tasks = [writing, *map(asyncio.ensure_future, (self._watch(send), disconnected(receive)))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if writing not in done:
                raise ClientGone
        except ClientGone:
            self._gone()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._pieces.aclose()  # type: ignore[attr-defined]

    async def _write(self, send: Send) -> None:
        async for piece in self._pieces:
            await self._send(send, piece)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        self._is_sending, self._since = True, time.monotonic()
        try:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError:
            raise ClientGone from None
        finally:
            self._is_sending, self._since = False, time.monotonic()

    async def _watch(self, send: Send) -> None:
        """Send a comment each time the next piece is late. Raises ClientGone if the client reads nothing."""
        while True:
            seconds = self._write_seconds if self._is_sending else PING_SECONDS
            if (left := self._since + seconds - time.monotonic()) > 0:
                # The next piece may be sent, and its client stall, at any time.
                await asyncio.sleep(min(left, self._write_seconds / CHECKS))
            elif self._is_sending:
                # Without a last piece, uvicorn closes the connection.
                raise ClientGone
            else:
                await self._ping(send)

    async def _ping(self, send: Send) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await send({"type": "http.response.body", "body": PING, "more_body": True})
        except (TimeoutError, OSError):
            raise ClientGone from None
        self._since = time.monotonic()


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
