"""Dispatches requests to one engine process, inside the server's event loop.

    answer = dispatcher.submit(requests)        Refusal 429 if too many texts wait, 503 if shutting down
    async for number, event in answer: ...      engine.py's events; Refusal if the engine refuses a request
    answer.cancel()                             after the client has disconnected

The engine never waits for a client. Once MOST_EVENTS events of an answer are unread, further events are
merged into them, so a slow client holds only a bounded number of events.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from nbtrain.base.errors import ConfigError, ContextLengthError, NbtrainError, named_error
from nbtrain.serving.engine_process import EngineProcess, Event, Loading
from nbtrain.serving.metrics import Metrics
from nbtrain.serving.refusals import Refusal, too_long

MOST_EVENTS = 256
# Fields that only the last event of a text has.
LAST = ("finish_reason", "new_tokens", "end_logprob")
ENDING = "the server is shutting down."


class RequestEvents:
    """The events of one HTTP request, for which the engine may run several requests."""

    def __init__(self, dispatcher: "Dispatcher", requests: Sequence[Mapping[str, Any]], is_chat: bool):
        self._dispatcher, self._is_chat = dispatcher, is_chat
        self.texts = sum(request["n"] for request in requests)
        self.numbers = {dispatcher.process.new_id(): number for number, request in enumerate(requests)}
        self._running = set(self.numbers)
        self._waiting = set(self.numbers)
        """Ids of the engine requests that have not been accepted yet."""
        self._events: deque[Event] = deque()
        self._failure: Refusal | None = None
        self._there = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event. Called by the dispatcher."""
        if "accepted" in event:
            self._waiting.discard(event["id"])
            self._there.set()
            return
        if "end" in event or "error" in event:
            self._running.discard(event["id"])
        if len(self._events) < MOST_EVENTS or not self._joined(event):
            self._events.append(event)
        self._there.set()

    def _joined(self, event: Event) -> bool:
        """Merge the event into the newest unread event of the same text. Return whether there was one."""
        if "text" not in event:
            return False
        for held in reversed(self._events):
            if held["id"] == event["id"] and held.get("index") == event["index"]:
                held["text"] += event["text"]
                held["tokens"] = held["tokens"] + event["tokens"]
                if "logprobs" in event:
                    held["logprobs"] = held.get("logprobs", []) + event["logprobs"]
                held.update({key: event[key] for key in LAST if key in event})
                return True
        return False

    async def accepted(self) -> None:
        """Wait until the engine has accepted all requests. Raises Refusal if it refuses one."""
        while self._waiting and self._failure is None:
            if refusal := next((event for event in self._events if "error" in event), None):
                self.cancel()
                raise refused(refusal, self._is_chat)
            self._there.clear()
            await self._there.wait()
        if self._failure is not None and self._waiting:
            self.cancel()
            raise self._failure

    def fail(self, refusal: Refusal) -> None:
        """End the answer with a refusal. Events that arrived before are still delivered."""
        self._failure = self._failure or refusal
        self._there.set()

    def cancel(self) -> None:
        """Cancel the requests of this answer that are still running."""
        for request_id in self._running:
            self._dispatcher.process.send({"kind": "cancel", "id": request_id})
        self._running.clear()
        self._dispatcher.forget(self)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        while True:
            while self._events:
                event = self._events.popleft()
                if "error" in event:
                    self.cancel()
                    raise refused(event, self._is_chat)
                yield self.numbers[event["id"]], event
            if self._failure is not None:
                self.cancel()
                raise self._failure
            if not self._running:
                self._dispatcher.forget(self)
                return
            self._there.clear()
            await self._there.wait()


class Dispatcher:
    """Sends the server's requests to one engine process and distributes its events."""

    def __init__(self, loading: Loading, max_queue: int, metrics: Metrics):
        self.max_queue, self.metrics = max_queue, metrics
        self.notes: list[str] = []
        self._answers: dict[str, RequestEvents] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: Refusal | None = None
        self.ended = asyncio.Event()
        """Set once the process has ended."""
        self.process = EngineProcess(loading, self._from_thread, self.notes.append)

    async def wait_until_ready(self) -> dict[str, Any]:
        """Return the engine's description of its model, once loaded.

        Raises the NbtrainError that ended the process.
        """
        return await asyncio.to_thread(self.process.wait_until_ready)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._answers)

    def submit(
        self, requests: Sequence[Mapping[str, Any]], is_chat: bool = False, streams: bool = True
    ) -> RequestEvents:
        """Send requests to the engine and return the answer to read.

        With `streams`, every piece of text is sent as soon as it is generated. Raises Refusal if too
        many texts already wait, or if the engine has ended.
        """
        if self._ended is not None:
            raise self._ended
        answer = RequestEvents(self, requests, is_chat)
        present = sum(one.texts for one in set(self._answers.values()))
        most = self.process.ready["max_batch"] + self.max_queue
        if answer.texts > most:
            words = (
                f"the request is for {answer.texts} texts at once; the maximum is {most}. Split the request."
            )
            raise Refusal(400, words, "n", "invalid_value")
        if present + answer.texts > most:
            raise Refusal(
                429,
                f"Rate limit reached: the server accepts at most {most} texts at a time. Texts already "
                f"running or waiting: {present}; texts in this request: {answer.texts}. "
                "Please try again in 1s.",
                code="rate_limit_exceeded",
            )
        try:
            for request_id, request in zip(answer.numbers, requests):
                self._answers[request_id] = answer
                self.process.send({"kind": "generate", **request, "id": request_id, "streams": streams})
        except BaseException:
            # Nothing will read this answer, so it must not occupy a slot.
            answer.cancel()
            raise
        return answer

    def forget(self, answer: RequestEvents) -> None:
        """Stop tracking a finished or cancelled answer."""
        for request_id in answer.numbers:
            self._answers.pop(request_id, None)

    def fail_all(self, refusal: Refusal) -> None:
        """End all answers with a refusal, and refuse later requests."""
        self._ended = self._ended or refusal
        for answer in set(self._answers.values()):
            answer.fail(refusal)

    async def close(self) -> None:
        """Refuse all requests and end the process."""
        self.fail_all(Refusal(503, ENDING, code="shutting_down"))
        await asyncio.to_thread(self.process.close)

    def _from_thread(self, message: dict[str, Any]) -> None:
        # The loop is closed once the server has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: dict[str, Any]) -> None:
        if not message:
            words = str(self.process.error or "it was unloaded")
            self.fail_all(Refusal(500, f"the model's process has ended: {words}", code="engine_ended"))
            self.ended.set()
            return
        self.metrics.running.set(message["running"])
        self.metrics.waiting.set(message["waiting"])
        for event in message["events"]:
            if (answer := self._answers.get(event["id"])) is not None:
                if "new_tokens" in event and "end" in event:
                    self.metrics.prompt_tokens.inc(event["prompt_tokens"])
                    self.metrics.new_tokens.inc(event["new_tokens"])
                answer.put(event)


def refused(event: Mapping[str, Any], is_chat: bool) -> Refusal:
    """Convert the engine's refusal of a request to an HTTP refusal."""
    error = named_error(event)
    if isinstance(error, ContextLengthError):
        return too_long(event["positions"], event["prompt_tokens"], event["max_new_tokens"], is_chat)
    if isinstance(error, ConfigError):
        return Refusal(400, str(error), code="invalid_value")
    return Refusal(500, str(error))


def status_of(error: NbtrainError) -> int:
    """Return the HTTP status for a model that cannot be loaded."""
    return 400 if isinstance(error, ConfigError) else 500
