"""The server process: listens, loads models, answers requests and shuts down cleanly.

    SIGTERM or Ctrl-C    no new connections; running requests continue for grace_seconds, then each stream
                         gets an error event and ends, and each other request gets 503; then the model is
                         unloaded
    a second Ctrl-C      ends the server at once

If the model's process fails, every request gets its last output as an error, and the server ends with that
error.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from nbtrain.base.errors import ConfigError, NbtrainError
from nbtrain.serving.app import Routes
from nbtrain.serving.dispatch import Dispatcher
from nbtrain.serving.metrics import Metrics
from nbtrain.serving.models import Models, check_run
from nbtrain.serving.options import ServeOptions

# Time limit for requests that do not end although they were cancelled.
LAST_SECONDS = 5.0
# Maximum number of open connections, including idle ones; requests on further connections get 503.
MOST_CONNECTIONS = 1024
BACKLOG = 512
# nginx's default. Uvicorn's default is 5 s, and OpenAI's client also keeps an idle connection for 5 s, so a
# request sent at that moment would find its connection closed.
KEEP_ALIVE_SECONDS = 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Ready:
    """The description of a server that answers requests."""

    url: str
    """URL without the token, or the path of the Unix socket."""
    name: str | None
    """Name of the run; None if any run is served."""
    facts: dict[str, Any]
    """Properties of the model, such as step, dtype, device, max_batch, positions and chat_template."""


def serve(
    options: ServeOptions,
    token: str | None,
    when_ready: Callable[[Ready], None],
    say: Callable[[str], None] = print,
    until: Callable[[], None] | None = None,
) -> int:
    """Serve until the process receives SIGINT or SIGTERM, and return its exit code.

    `until`, if given, runs in a thread, and the server also ends when it returns. Raises NbtrainError if the
    model cannot be loaded, and ConfigError if the port is in use.
    """
    check_run(options)
    listening = _socket(options)
    own = _inode(options.uds)
    try:
        return asyncio.run(_serve(options, token, listening, when_ready, say, until))
    finally:
        listening.close()
        # The socket is removed only if no other program has replaced it.
        if options.uds is not None and own is not None and _inode(options.uds) == own:
            Path(options.uds).unlink(missing_ok=True)


async def _serve(
    options: ServeOptions,
    token: str | None,
    listening: socket.socket,
    when_ready: Callable[[Ready], None],
    say: Callable[[str], None],
    until: Callable[[], None] | None,
) -> int:
    metrics = Metrics()
    models = Models(options, metrics, say)
    failure: list[NbtrainError] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await models.close()

    app = Routes(options, models, metrics).app(token, lifespan)
    config = uvicorn.Config(
        app,
        # URLs may contain the token, which must not appear in a log.
        access_log=False,
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(options.grace_seconds + LAST_SECONDS),
        lifespan="on",
    )
    server = OrderlyServer(config, models, options.grace_seconds)
    watching = [asyncio.ensure_future(models.unload_when_idle())]
    if until is not None:
        threading.Thread(
            target=server.end_after, args=(until, asyncio.get_running_loop()), daemon=True
        ).start()
    answering = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        ready = Ready(_url(options, listening), None, {})
        if options.run is not None:
            loading = asyncio.ensure_future(models.load(Path(options.run)))
            # If a signal arrives during loading, uvicorn handles it and `answering` completes first.
            await asyncio.wait({loading, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                await asyncio.wait({loading})
                return 0
            served = loading.result()
            ready = Ready(ready.url, served.name, served.ready)
            watching.append(asyncio.ensure_future(_end_with_engine(served.dispatcher, server, failure)))
        when_ready(ready)
        await answering
    finally:
        server.should_exit = True
        for task in watching:
            task.cancel()
        await asyncio.wait({answering})
        await models.close()
    if failure:
        raise failure[0]
    return 0


async def _end_with_engine(
    dispatcher: Dispatcher, server: "OrderlyServer", failure: list[NbtrainError]
) -> None:
    await dispatcher.ended.wait()
    if not server.should_exit and dispatcher.process.error is not None:
        failure.append(dispatcher.process.error)
        server.should_exit = True


class OrderlyServer(uvicorn.Server):
    """A uvicorn server with a clean shutdown.

    Plain uvicorn either waits indefinitely for streams or cuts them off without an error.
    """

    def __init__(self, config: uvicorn.Config, models: Models, grace_seconds: float):
        super().__init__(config)
        self._models, self._grace = models, grace_seconds

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals here, because uvicorn raises the signal again before the model is unloaded."""
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        for number in SIGNALS if is_main else ():
            loop.add_signal_handler(number, self._told, number)
        try:
            yield
        finally:
            for number in SIGNALS if is_main else ():
                loop.remove_signal_handler(number)

    def _told(self, number: int) -> None:
        first = not self.should_exit
        self.handle_exit(number, None)
        if first:
            self._begin_to_end()

    def _begin_to_end(self) -> None:
        self._models.is_ending = True
        asyncio.get_running_loop().call_later(self._grace, self._models.end_answers)

    def end_after(self, until: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Shut down cleanly once `until` has returned."""
        until()

        def begin() -> None:
            if not self.should_exit:
                self.should_exit = True
                self._begin_to_end()

        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(begin)


def _socket(options: ServeOptions) -> socket.socket:
    """Return a bound socket. Raises ConfigError if the address cannot be used.

    Binding happens before the model is loaded, which may take minutes.
    """
    if options.uds is not None:
        path = Path(options.uds)
        listening = socket.socket(socket.AF_UNIX)
        try:
            _make_room(path)
            listening.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            listening.close()
            raise ConfigError(f"--uds {path}: {error.strerror or error}.") from None
        except ConfigError:
            listening.close()
            raise
        return listening
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
    except OSError as error:
        listening.close()
        where = f"{options.host}, port {options.port}"
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{where}: the port is in use by another program. `--port 0` chooses a free port."
            ) from None
        raise ConfigError(f"{where}: {error.strerror or error}.") from None
    return listening


def _make_room(path: Path) -> None:
    """Remove a socket left by a killed server. Raises ConfigError if the path is in use or not a socket."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--uds {path}: the path exists and is not a socket. Choose another path.")
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(str(path)) == 0:
                raise ConfigError(
                    f"--uds {path}: the socket is in use by another program. Choose another path."
                )
        path.unlink()


def _inode(path: str | None) -> int | None:
    """Return the inode of the file at a path; None if the file does not exist."""
    if path is None:
        return None
    with contextlib.suppress(OSError):
        return os.lstat(path).st_ino
    return None


def _url(options: ServeOptions, listening: socket.socket) -> str:
    if options.uds is not None:
        return options.uds
    port = listening.getsockname()[1]
    host = "127.0.0.1" if options.host in ("0.0.0.0", "") else options.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
