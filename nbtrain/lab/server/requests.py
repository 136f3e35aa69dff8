"""Shared parts of the REST routes: authorization, request limits, the threads that do the work, errors.

    read()     files of runs: four threads, so that a slow disk blocks neither kernels nor other requests
    read_first()  the list of runs: a separate thread; while it reads, calls of read() that have not begun
                  wait; after the server's start they also wait for a moment until the list is requested
    library()  plan, check, submit: two threads; a call may take seconds
    act()      save, stop, pause: a separate thread; the response waits up to two seconds for its end, and
               the run's description reports an error that occurs later

A GET does not count as activity: a forgotten panel must not keep an idle server from being culled. A body
over MOST_BODY_BYTES is refused before it is read.
"""

import asyncio
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, NbtrainError
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.lab.server.views import NoRun, OutsideError, catch_up, view_of
from nbtrain.monitor.metrics.finite_json import encoded
from nbtrain.monitor.run.run_view import RunView

Value = TypeVar("Value")

# A run YAML has a few KB; the longest text in a form field has 1,000 characters.
MOST_BODY_BYTES = 1 << 20
# Bytes of a refused body that are read and discarded, so that the sender receives the reason.
MOST_DISCARDED_BYTES = 64 << 20
# If a job ends within this time, the response reports it; otherwise the panel shows it later.
ANSWER_SECONDS = 2.0
# Each thread waits for the end of a job.
MOST_ACTIONS = 32

# A page that a user waits for begins with the list, and the list's thread shares the interpreter with all
# others, so the others wait for the list this long.
MOST_WAIT_SECONDS = 1.0
# After a server's start all pages are requested at once, and the list may be the last. The other requests
# import modules first, which would block the interpreter for the list.
FIRST_WAIT_SECONDS = 0.2

READERS = ThreadPoolExecutor(4, "nbtrain-read")
LIST = ThreadPoolExecutor(1, "nbtrain-list")
# Reads ahead and imports modules; no request waits for this pool.
AHEAD = ThreadPoolExecutor(1, "nbtrain-ahead")
LIBRARY = ThreadPoolExecutor(2, "nbtrain-library")


class RequestError(web.HTTPError):
    """An HTTP error with a message. It exists because tornado would double a % in the message."""

    def __init__(self, status: int, words: str, kind: str = ""):
        super().__init__(status, "%s", words)
        self.words = words
        self.kind = kind


def status_of_error(error: BaseException) -> int:
    """Return the HTTP status for an error: 404 not found, 403 not allowed, 422 invalid, otherwise 409."""
    if isinstance(error, NoRun | FileNotFoundError):
        return 404
    if isinstance(error, OutsideError | PermissionError):
        return 403
    return 422 if isinstance(error, ConfigError | DataError | CheckpointError) else 409


METHODS = ("get", "post", "patch", "delete")


def named_run(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's body unchanged. Raises 400 if it names no run YAML and no run to clone."""
    if not (body.get("yaml") or body.get("clone")):
        raise RequestError(400, 'yaml is missing: {"yaml": the name or path of a run YAML}.')
    return body


@web.stream_request_body
class NbtrainHandler(APIHandler):
    """Shared base of the REST handlers.

    Each of METHODS that a subclass defines is authenticated and authorized like Jupyter's own. If a
    request is refused before its body was read, the response is sent after the body: a client whose
    connection closes while it is still sending would see an error without a message.
    """

    auth_resource = "nbtrain"

    def __init_subclass__(cls) -> None:
        for name in METHODS:
            if name in cls.__dict__:
                setattr(cls, name, _guarded(cls.__dict__[name]))

    def initialize(self) -> None:
        self._body = bytearray()
        self._body_bytes = 0
        self.refused: web.HTTPError | None = None

    @property
    def _track_activity(self) -> bool:  # type: ignore[override]
        return self.request.method not in ("GET", "HEAD", "OPTIONS")

    async def prepare(self, **_: Any) -> None:
        """Check authentication and XSRF, as for Jupyter's own routes, then the size of the body."""
        length = self.request.headers.get("Content-Length", "0")
        num_bytes = int(length) if length.isdigit() else 0
        sends = num_bytes or "Transfer-Encoding" in self.request.headers
        try:
            await super().prepare()
            if num_bytes > MOST_BODY_BYTES:
                raise _too_large(num_bytes)
        except web.HTTPError as error:
            if not sends or num_bytes > MOST_DISCARDED_BYTES:
                raise
            self.refused = error

    def data_received(self, chunk: bytes) -> None:
        self._body_bytes += len(chunk)
        if self._body_bytes > MOST_DISCARDED_BYTES:
            self.request.connection.close()  # type: ignore[union-attr]
        elif self._body_bytes > MOST_BODY_BYTES:
            self._body.clear()
            self.refused = self.refused or _too_large(None)
        elif self.refused is None:
            self._body += chunk

    def body(self, **known: type) -> dict[str, Any]:
        """Return the JSON object of the request, {} without a body. Raises 400 for an unknown key or a wrong
        type.

        `known` maps the keys to their types, `object` for any type. null is always allowed; such keys are
        omitted from the result.
        """
        try:
            value = json.loads(bytes(self._body) or b"{}")
        except (ValueError, RecursionError):
            raise RequestError(400, "the body of the request is not JSON: send a JSON object.") from None
        if not isinstance(value, dict):
            raise RequestError(400, "the body of the request must be a JSON object.")
        for key, found in value.items():
            if key not in known:
                raise RequestError(
                    400, f"{key!r} is not a key of this request; its keys are: {', '.join(known)}."
                )
            if found is not None and known[key] not in (type(found), object):
                raise RequestError(400, f"{key} = {json.dumps(found)[:80]} must be {WORDS[known[key]]}.")
        return {key: found for key, found in value.items() if found is not None}

    def number(self, argument: str, default: int | None = None, most: int | None = None) -> int | None:
        """Return a whole number from the query, or `default` if the query does not have the argument.

        Raises 400 for other text, and for a number above `most`.
        """
        text = self.get_argument(argument, None)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise RequestError(400, f"{argument} = {text[:80]!r} must be a whole number of at least 0.")
        if most is not None and int(text) > most:
            raise RequestError(400, f"{argument} = {int(text):,} must be at most {most:,}.")
        return int(text)

    def real(self, argument: str) -> float | None:
        """Return a finite number from the query, e.g. a time; None if the query does not have the argument.

        Raises 400 for other text.
        """
        text = self.get_argument(argument, None)
        try:
            value = None if text is None else float(text)
        except ValueError:
            value = float("nan")
        if value is not None and not abs(value) < float("inf"):
            raise RequestError(400, f"{argument} = {str(text)[:80]!r} must be a finite number.")
        return value

    def switch(self, argument: str) -> bool | None:
        """Return a 0 or 1 from the query as a bool; None if the query does not have the argument.

        Raises 400 for other text.
        """
        text = self.get_argument(argument, None)
        if text not in (None, "0", "1"):
            raise RequestError(400, f"{argument} = {text[:80]!r} must be 0 or 1.")
        return None if text is None else text == "1"

    async def view(self, name: str) -> RunView:
        """Return the view of the run `name`.

        Raises 404 if the run does not exist, and 403 if it is outside the output directory.
        """
        return await self.read(view_of, name)

    def catch_up(self, view: RunView) -> None:
        """Read the rest of long metrics files in the background, for the next response."""
        if view.reader.behind_bytes:
            AHEAD.submit(catch_up, view)

    async def read(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Run a function that reads files of runs, and return its result."""
        return await in_pool(READERS, _after_the_list, function, *arguments)

    async def read_first(self, function: Callable[[], Value]) -> Value:
        """Run a function like read(), ahead of the calls of read() that have not begun yet."""
        return await in_pool(LIST, _before_all, function)

    async def library(self, function: Callable[..., Value], *arguments: Any) -> tuple[Value, list[str]]:
        """Run a function of the library; return its result and the messages that a notebook would print."""

        def call() -> tuple[Value, list[str]]:
            with said_here() as notes:
                return function(*arguments), notes

        return await in_pool(LIBRARY, call)

    def answer(self, value: dict[str, Any], status: int = 200) -> None:
        """Send a value as JSON. NaN and Inf become null, because JSON does not support them."""
        self.set_status(status)
        self.finish(encoded(value))

    def log_exception(self, *error: Any) -> None:
        """Log an exception unless it is a refusal: refusals are not errors of the server, and the client
        receives their message.
        """
        if not isinstance(error[1], web.HTTPError | NbtrainError):
            super().log_exception(*error)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error as {"message"}, which the panel shows, with "kind" if pages distinguish the error."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = error.words if isinstance(error, RequestError) else None
        if message is None and isinstance(error, web.HTTPError):
            message = error._log_message or error.reason
        self.set_status(status_code)
        kind = error.kind if isinstance(error, RequestError) else ""
        words = message or WORDLESS.get(status_code, f"HTTP {status_code}")
        self.finish({"message": words, **({"kind": kind} if kind else {})})


WORDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    dict: "a JSON object",
    list: "a list",
    int: "a whole number",
}
WORDLESS = {
    403: "you are not logged in to this server: log in again, or send its token.",
    405: "this address does not support the HTTP method of the request.",
    500: "the server failed to answer; its log has the error.",
}


def _too_large(num_bytes: int | None) -> RequestError:
    most = f"{MOST_BODY_BYTES:,} ({amounts.size(MOST_BODY_BYTES)})"
    if num_bytes:
        return RequestError(413, f"the request body has {num_bytes:,} bytes; at most {most} are allowed.")
    return RequestError(413, f"the request body has more bytes than the {most} that are allowed.")


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    inner = web.authenticated(authorized(method))

    @functools.wraps(method)
    async def outer(self: NbtrainHandler, *arguments: str) -> None:
        if self.refused is not None:
            raise self.refused
        if (answer := inner(self, *arguments)) is not None:
            await answer

    return outer


_list_was_asked = threading.Event()
_list_was_read = threading.Event()
_list_was_read.set()


def _before_all(function: Callable[[], Value]) -> Value:
    _list_was_read.clear()
    _list_was_asked.set()
    try:
        return function()
    finally:
        _list_was_read.set()


def _after_the_list(function: Callable[..., Value], *arguments: Any) -> Value:
    if not _list_was_asked.is_set():
        _list_was_asked.wait(FIRST_WAIT_SECONDS)
        _list_was_asked.set()
    # A list on a slow disk does not stop the rest.
    _list_was_read.wait(MOST_WAIT_SECONDS)
    return function(*arguments)


async def in_pool(pool: ThreadPoolExecutor, function: Callable[..., Value], *arguments: Any) -> Value:
    """Run a function in a thread of a pool and return its value. nbtrain's errors are raised as
    RequestError.
    """
    call = functools.partial(function, *arguments)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, call)
    except (NbtrainError, OSError) as error:
        raise request_error(error) from error


def request_error(error: NbtrainError | OSError) -> RequestError:
    """Return the HTTP error for an error of nbtrain or of the file system."""
    return RequestError(status_of_error(error), words_of(error), getattr(error, "kind", ""))


def words_of(error: NbtrainError | OSError) -> str:
    """Return the message of an error, worded for users."""
    if isinstance(error, NbtrainError):
        return str(error)
    if isinstance(error, PermissionError):
        return f"{files.not_allowed(error)}."
    if isinstance(error, FileNotFoundError):
        return f"{display(error.filename)} does not exist."
    return f"{display(error.filename)}: {error.strerror}." if error.filename else f"{error}."


@contextmanager
def said_here() -> Iterator[list[str]]:
    """Collect the lines that nbtrain logs in this thread, to include them in the response: users do not see
    the server's log.
    """
    lines: list[str] = []
    here = threading.get_ident()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == here and record.levelno >= logging.INFO:
                lines.append(record.getMessage())

    logger, listener = logging.getLogger("nbtrain"), Listener()
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)


@dataclass(frozen=True)
class FailedAction:
    """An action that failed after its request was answered."""

    action: str
    """Key of the action's button: "save", "stop", "kill" or "pause"."""
    message: str
    at: float
    """Time of the failure, in seconds since the epoch."""


class Actions:
    """Running actions on jobs, and each run's newest action that failed after its request was answered.

    Each action has its own thread, and runs only once even if it is requested several times.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, str, str], Future[Any]] = {}
        # By the run's name: the job, its state at the failure, and the failure.
        self._failed: dict[str, tuple[str, str, FailedAction]] = {}
        self._lock = threading.Lock()

    def start(self, job: JobDir, what: str, function: Callable[[], Any], log: Any) -> "Future[Any]":
        """Return the action of the kind `what` that is running on the job, or start it.

        Raises 409 if MOST_ACTIONS actions are running.
        """
        key = (what, job.run.name, job.job_id)
        with self._lock:
            if key in self._running:
                return self._running[key]
            if len(self._running) >= MOST_ACTIONS:
                raise RequestError(
                    409, f"{MOST_ACTIONS} jobs are being saved, stopped or paused already; try again later."
                )
            future: Future[Any] = Future()
            self._running[key] = future
            self._failed.pop(job.run.name, None)

        def work() -> None:
            try:
                value = function()
            except BaseException as error:
                log.error("nbtrain: %s: %s", " ".join(key), error)
                self._forget(key)
                future.set_exception(error)
            else:
                self._forget(key)
                future.set_result(value)

        threading.Thread(target=work, name=f"nbtrain-{key[0]}", daemon=True).start()
        return future

    def failed_late(self, job: JobDir, what: str, error: BaseException) -> None:
        """Store the error of an action that failed after its request was answered."""
        if isinstance(error, NbtrainError | OSError):
            message = words_of(error)
        else:
            message = "the action failed; the server's log has the reason."
        state, _ = read_state(job, time.time())
        failed = FailedAction(what, message, time.time())
        with self._lock:
            self._failed[job.run.name] = (job.job_id, state, failed)

    def failed(self, name: str, job_id: str | None, state: str) -> dict[str, Any] | None:
        """Return the newest failed action of a run as JSON; None without a failure or if it is out of date.

        A failure is out of date if the job's state has changed since then, or if the run has a newer job.
        """
        with self._lock:
            *about, failed = self._failed.get(name, (None, None, None))
        return asdict(failed) if failed and about == [job_id, state] else None

    def all_failed(self, runs: Mapping[str, tuple[str | None, str]]) -> dict[str, dict[str, Any]]:
        """Return {name of a run: its failed action}, from {name: (id of its newest job, state)}."""
        found = {name: self.failed(name, *runs[name]) for name in list(self._failed) if name in runs}
        return {name: failed for name, failed in found.items() if failed}

    def clear(self, name: str) -> None:
        """Forget the failed action of a run, because another action began."""
        with self._lock:
            self._failed.pop(name, None)

    def _forget(self, key: tuple[str, str, str]) -> None:
        with self._lock:
            del self._running[key]


ACTIONS = Actions()


async def act(job: JobDir, what: str, function: Callable[[], Any], log: Any) -> bool:
    """Start an action on a job and return whether it ended within ANSWER_SECONDS. If it failed by then,
    raises RequestError with the reason; the run's description reports an error that occurs later.
    """
    action = ACTIONS.start(job, what, function, log)
    future = asyncio.wrap_future(action)
    done, _ = await asyncio.wait([future], timeout=ANSWER_SECONDS)
    if not done:
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        action.add_done_callback(lambda ended: _keep_failure(job, what, ended.exception()))
        return False
    try:
        future.result()
    except (NbtrainError, OSError) as error:
        raise request_error(error) from error
    return True


def _keep_failure(job: JobDir, what: str, error: BaseException | None) -> None:
    if error is not None:
        ACTIONS.failed_late(job, what, error)
