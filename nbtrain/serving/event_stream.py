"""Sends server-sent events to one client, and ends the stream if the client disconnects or stops reading.

Starlette's StreamingResponse would wait indefinitely for a client that stops reading.
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
"""Number of times that the client is checked in each write_seconds.

A client that has stopped reading is dropped at most write_seconds / CHECKS too late.
"""


class ClientGone(Exception):
    """Raised if the client has disconnected or has stopped reading."""


def event(content: Any) -> bytes:
    """Format content as a server-sent event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


class EventStream(Response):
    """A streamed response: pieces as they arrive, and a comment every PING_SECONDS while none arrives.

    One task writes, and two others watch it for the whole stream. A task and a timer for each piece would
    take as long as sending the piece.
    """

    def __init__(self, pieces: AsyncIterator[bytes], write_seconds: float, gone: Callable[[], None]):
        """Store the pieces. `gone` is called if the client is dropped; the pieces are always closed."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._pieces, self._write_seconds, self._gone = pieces, write_seconds, gone
        self._is_sending = False
        """Whether a piece is being sent to the client."""
        self._since = time.monotonic()
        """Monotonic time at which the current piece was begun or, between pieces, the last one was sent."""

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
        """Send a comment whenever no piece arrives in time. Raises ClientGone if the client stops reading."""
        while True:
            seconds = self._write_seconds if self._is_sending else PING_SECONDS
            if (left := self._since + seconds - time.monotonic()) > 0:
                # A piece may be sent at any time, and its client may stall then, so sleep only briefly.
                await asyncio.sleep(min(left, self._write_seconds / CHECKS))
            elif self._is_sending:
                # The error leaves the response unfinished, so uvicorn closes the connection.
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
