"""A proxy in front of TensorBoard that starts it at the first request and ends it when it is idle.

    python -m nbtrain.lab.server.tensorboard_door --port 6006 --root DIR [options of TensorBoard]

The proxy holds the port and 20 MB of memory; TensorBoard and its data server hold 90 MB and more, on a free
loopback port, and only while they are used. jupyter-server-proxy starts a command only once: if the command
ended, no later request would start it again. Proxy and TensorBoard end together with the process that started
the proxy, however it ends.

The proxy itself answers /nbtrain-runs?run=NAME: it makes TensorBoard show that run, or every run if NAME is
all, and returns the number of runs that are shown. The proxy of `nbtrain tensorboard` also serves /nbtrain/,
the page that keeps TensorBoard live.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.ports import LOOPBACK, port_to_listen_on
from nbtrain.base.process.signals import hear_signals
from nbtrain.lab.server.tensorboard_runs import RunLinks

IDLE_MINUTES = 30.0
# TensorBoard needs 2 s on an idle machine and much more while a job trains on every core.
START_SECONDS = 60.0
TRY_SECONDS = 0.1
# Seconds between two searches for new runs, as often as TensorBoard searches.
LINK_SECONDS = 5.0
END_SECONDS = 10.0
PIECE_BYTES = 1 << 16
PAGE_PATH = "/nbtrain/"
RUNS_PATH = "/nbtrain-runs"

NOT_STARTED = b"HTTP/1.0 502 Bad Gateway\r\nContent-Type: text/plain\r\n\r\nTensorBoard did not start.\n"


class Door:
    """Proxy that listens, forwards bytes, and records when the last connection was closed."""

    def __init__(
        self, command: list[str], idle_seconds: float, page: bytes | None = None, root: Path | None = None
    ):
        """Set up the proxy; serve() starts it.

        `command` starts TensorBoard; the proxy adds the option for the port. `page` is the page at PAGE_PATH.
        `root` is the output directory whose runs TensorBoard shows by their names. If `root` is None, the
        options in `command` name the folder to show.
        """
        self.command, self.idle_seconds, self.page, self.root = command, idle_seconds, page, root
        self._links: RunLinks | None = None
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._open, self._last = 0, time.monotonic()

    async def serve(self, host: str, port: int, say: Callable[[int], None] = lambda port: None) -> None:
        """Listen and answer requests until this task is cancelled.

        With port 0, a free port is used. `say` is called with the port once the proxy listens.
        """
        linking = None
        try:
            server = await asyncio.start_server(self._answer, host, port)
            say(server.sockets[0].getsockname()[1])
            if self.root is not None:
                self._links = RunLinks(self.root)
                linking = asyncio.ensure_future(self._link(self._links))
            async with server:
                while True:
                    await asyncio.sleep(min(self.idle_seconds / 4, 30.0))
                    if not self._open and time.monotonic() - self._last >= self.idle_seconds:
                        await self.end()
        finally:
            if linking is not None:
                linking.cancel()
            await self.end()
            if self._links is not None:
                self._links.remove()

    async def _link(self, links: RunLinks) -> None:
        """Link new runs while TensorBoard is running."""
        while True:
            await asyncio.sleep(LINK_SECONDS)
            if self._process is not None:
                # If the output root cannot be read now, try again at the next search.
                with contextlib.suppress(OSError):
                    links.refresh()

    async def end(self) -> None:
        """End TensorBoard. The next request starts it again."""
        if (process := self._process) is None:
            return
        self._process = None
        if self._links is not None:
            self._links.forget()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            # TensorBoard closes each connection after its response, so a connection has one request.
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                line = await reader.readuntil(b"\r\n")
                if (own := self._own_answer(line)) is None:
                    await self._forward(line, reader, writer)
                else:
                    writer.write(own)
                    await writer.drain()
        except (ConnectionError, OSError):
            pass  # One side has closed its connection, so close the other one too.
        finally:
            self._open -= 1
            self._last = time.monotonic()
            writer.close()
            with contextlib.suppress(ConnectionError, OSError):
                await writer.wait_closed()

    def _own_answer(self, line: bytes) -> bytes | None:
        """Return the proxy's own response to a request that begins with `line`; None if the request is for
        TensorBoard.
        """
        method, _, rest = line.partition(b" ")
        if method != b"GET":
            return None
        address = urllib.parse.urlsplit(rest.partition(b" ")[0].decode("ascii", "replace"))
        if self.page is not None and address.path.startswith(PAGE_PATH):
            return _answer_of("text/html; charset=utf-8", self.page)
        if self._links is None or address.path != RUNS_PATH:
            return None
        for name in urllib.parse.parse_qs(address.query).get("run", ()):
            self._links.ask(name)
        with contextlib.suppress(OSError):
            self._links.refresh()
        counts = {"shown": len(self._links.shown), "runs": self._links.number_of_runs}
        return _answer_of("application/json", json.dumps(counts).encode())

    async def _forward(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not await self._started():
            writer.write(NOT_STARTED)
            await writer.drain()
            return
        board_reader, board_writer = await asyncio.open_connection(LOOPBACK, self.port)
        try:
            board_writer.write(first)
            asked = asyncio.ensure_future(_pass_on(reader, board_writer))
            await _pass_on(board_reader, writer)
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, OSError):
                await asked
        finally:
            board_writer.close()

    async def _started(self) -> bool:
        """Start TensorBoard unless it runs, and return whether it answers within START_SECONDS."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return True
            shown: list[str] = []
            self.port = port_to_listen_on()
            if self._links is not None:
                with contextlib.suppress(OSError):
                    self._links.refresh()
                shown = ["--logdir", str(self._links.folder)]
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                *shown,
                "--host",
                LOOPBACK,
                "--port",
                str(self.port),
                preexec_fn=die_with_parent,
            )
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline and self._process.returncode is None:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(LOOPBACK, self.port)
                    writer.close()
                    return True
                await asyncio.sleep(TRY_SECONDS)
            await self.end()
            return False


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _answer_of(kind: str, content: bytes) -> bytes:
    head = f"HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nCache-Control: no-cache\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proxy until it receives SIGTERM or its parent has ended."""
    parent = os.getppid()
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 0  # The parent ended before die_with_parent() took effect.
    parser = argparse.ArgumentParser(description="A proxy that runs TensorBoard while it is used.")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=6006)
    parser.add_argument("--root", type=Path, help="show the runs of this output root by their names")
    parser.add_argument("--idle-minutes", type=float, default=IDLE_MINUTES)
    options, rest = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "tensorboard.main", *rest]
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        door = Door(command, 60 * options.idle_minutes, root=options.root)
        asyncio.run(_until_asked(door, options.host, options.port))
    return 0


async def _until_asked(door: Door, host: str, port: int) -> None:
    task = asyncio.ensure_future(door.serve(host, port))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
