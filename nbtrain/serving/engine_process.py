"""The client of a process that holds a model and generates text. Threads may share one client.

    engine = EngineProcess(Loading(run_dir))
    engine.wait_until_ready()
    for _, event in engine.stream({"prompt": "def ", **generation.to_dict()}): ...
    engine.close()

The process runs nbtrain/inference/generate.py, which describes the protocol. It has no port: the client talks
to it only through pipes. When the client's process ends for any reason, the engine process ends too, because
its stdin closes.
"""

import contextlib
import itertools
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from nbtrain.base.errors import NbtrainError, named_error
from nbtrain.jobs.gpu_side import last_output
from nbtrain.jobs.machine.environment import supervisor_environment

Event = dict[str, Any]
MODULE = "nbtrain.inference"
END_SECONDS = 10.0


@dataclass(frozen=True)
class Loading:
    """Options for loading a model. None selects a default that suits the machine."""

    run_dir: str
    step: int | None = None
    """Step of the checkpoint; None means the newest complete one."""
    dtype: str = "auto"
    tensor_parallel_size: int | None = None
    max_batch: int | None = None
    """Maximum number of texts generated at the same time."""
    threads: int | None = None
    """Number of CPU threads; None means the default."""


class EngineProcess:
    """A model in a separate process."""

    def __init__(
        self,
        loading: Loading,
        receive: "Callable[[dict[str, Any]], None] | None" = None,
        note: Callable[[str], None] = lambda message: None,
    ):
        """Start the process.

        `receive`, if given, is called from this object's own thread: with each message of events, and with an
        empty dict once the process has ended. Without `receive`, read the events with stream(). `note` is
        called with a message about each checkpoint that is skipped.
        """
        self.loading = loading
        self.ready: dict[str, Any] = {}
        """The process's description of its model; empty until the model is loaded."""
        self.error: NbtrainError | None = None
        """Error that ended the process; None while it runs and after close()."""
        self._receive, self._note = receive, note
        self._streams: dict[str, queue.SimpleQueue[Event | None]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._is_ready, self._is_closed = threading.Event(), False
        # stderr goes to a file: no thread reads it while the process runs, and a full pipe would block.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # OpenMP threads that spin while they wait slow down other threads on the same core.
            env={"OMP_WAIT_POLICY": "PASSIVE", **supervisor_environment()},
            # Ctrl-C must reach only the client, which then cancels its requests.
            start_new_session=True,
        )
        self.send(asdict(loading))
        self._thread = threading.Thread(target=self._listen, name="nbtrain-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process accepts requests, now or once its model is loaded."""
        return self.error is None and not self._is_closed and self._process.poll() is None

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait until the model is loaded, and return the process's description of it.

        Raises the NbtrainError that ended the process.
        """
        self._is_ready.wait()
        if self.error is not None:
            raise self.error
        if self._is_closed:
            raise NbtrainError("the model was unloaded while it was still loading.")
        return self.ready

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the process. If the process has ended, the message is lost."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(orjson.dumps(message) + b"\n")
            stdin.flush()

    def new_id(self) -> str:
        """Return an unused request id."""
        return str(next(self._ids))

    def stream(self, *requests: Mapping[str, Any]) -> Iterator[tuple[int, Event]]:
        """Run several requests at once, and yield (index of the request, event) until all have ended.

        Closing the iterator cancels unfinished requests. Raises NbtrainError if a request is refused or the
        process ends.
        """
        return self.each(requests, len(requests))

    def each(self, requests: Iterable[Mapping[str, Any]], most: int) -> Iterator[tuple[int, Event]]:
        """Run any number of requests, at most `most` at once, and yield (index of the request, event).

        Otherwise the same as stream().
        """
        running: dict[str, int] = {}
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        waiting = enumerate(requests)
        try:
            while True:
                for number, request in itertools.islice(waiting, most - len(running)):
                    request_id = self.new_id()
                    running[request_id] = number
                    self._streams[request_id] = events
                    self.send({"kind": "generate", **request, "id": request_id})
                if not running:
                    return
                # The None that announces the end of the process does not reach requests that start after it.
                has_ended = self.error is not None or self._is_closed
                if (has_ended and events.empty()) or (event := events.get()) is None:
                    raise self.error or NbtrainError("the model was unloaded while it was generating.")
                number = running[event["id"]]
                if "end" in event or "error" in event:
                    del running[event["id"]], self._streams[event["id"]]
                if "error" in event:
                    raise named_error(event)
                yield number, event
        finally:
            for request_id in running:
                del self._streams[request_id]
                self.send({"kind": "cancel", "id": request_id})

    def close(self) -> None:
        """End the process.

        A process that is still loading its model is killed, because it cannot read stdin yet.
        """
        self._is_closed = True
        if not self._is_ready.is_set():
            self._process.kill()
        with contextlib.suppress(BrokenPipeError, OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join(END_SECONDS)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._take(orjson.loads(line))
        code = self._process.wait()
        if self.error is None and not self._is_closed:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self.error = NbtrainError(
                f"python -m {MODULE} {how}. Its last output:\n{last_output(self._said)}"
            )
        self._said.close()
        self._is_ready.set()
        for events in list(self._streams.values()):
            events.put(None)
        if self._receive is not None:
            self._receive({})

    def _take(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "events" if self._receive is not None:
                self._receive(message)
            case "events":
                for event in message["events"]:
                    if (events := self._streams.get(event["id"])) is not None:
                        events.put(event)
            case "ready":
                self.ready = message
                self._is_ready.set()
            case "note":
                self._note(message["message"])
            case "error":
                self.error = named_error(message)
