"""The routes of a model server.

GET  /                        a page for trying a model
GET  /health                  200 if requests are accepted, otherwise 503; needs no token
GET  /metrics                 metrics for Prometheus
GET  /v1/models, /v1/models/NAME
POST /v1/completions          OpenAI's API
POST /v1/chat/completions     OpenAI's API
PUT  /api                     Megatron-LM's text generation API, also with POST
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nbtrain.base.errors import NbtrainError
from nbtrain.config.generation import Generation
from nbtrain.serving import megatron, openai_requests
from nbtrain.serving.dispatch import RequestEvents
from nbtrain.serving.event_stream import ClientGone, EventStream, disconnected
from nbtrain.serving.json_response import JSONAnswer
from nbtrain.serving.metrics import CONTENT_TYPE, Metrics
from nbtrain.serving.models import Models, Served
from nbtrain.serving.openai_answers import Form, Usage, pieces_of, streamed_answer, whole_answer
from nbtrain.serving.openai_requests import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.refusals import Refusal, unknown_model
from nbtrain.serving.tokens import TokenRequired

PAGE = Path(__file__).with_name("page.html")
BODY_SECONDS = 30.0
# nginx's status for a client that has disconnected. It appears only in the metrics.
CLIENT_GONE = 499
PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions", "/api")
JSON_TYPES = ("application/json", "text/json")


class Routes:
    """The routes for the models of one server."""

    def __init__(self, options: ServeOptions, models: Models, metrics: Metrics):
        self.options, self.models, self.metrics = options, models, metrics

    def app(self, token: str | None, lifespan: Callable[[Any], Any]) -> ASGIApp:
        """Build the application, which requires the token as described in tokens.py.

        If `token` is None, every request is accepted, so the application must then listen only on a socket
        that no other user can open.
        """
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.prometheus),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/api", self.megatron, methods=["PUT", "POST"]),
        ]
        app: ASGIApp = Starlette(
            routes=routes,
            lifespan=lifespan,
            exception_handlers={
                Refusal: _refused,
                HTTPException: _http_error,
                ClientGone: _gone,
                ClientDisconnect: _gone,
                Exception: _failed,
            },
        )
        if token is not None:
            app = TokenRequired(app, token)
        return Counted(app, self.metrics)

    async def page(self, request: Request) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"cache-control": "no-cache"})

    async def health(self, request: Request) -> Response:
        if self.models.is_ending:
            return JSONAnswer({"status": "ending"}, 503)
        loaded = self.models.loaded
        if loaded is not None and loaded.dispatcher.ended.is_set():
            return JSONAnswer({"status": "the model's process has ended"}, 503)
        if loaded is None and self.models.is_single:
            # Requests also get 503 meanwhile. A server for any run instead loads the model that a request
            # names.
            return JSONAnswer({"status": "loading"}, 503)
        return JSONAnswer({"status": "ok", "loaded": loaded is not None})

    async def prometheus(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def list_models(self, request: Request) -> Response:
        names = await asyncio.to_thread(self.models.names)
        return JSONAnswer({"object": "list", "data": [self._described(*one) for one in names.items()]})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        names = await asyncio.to_thread(self.models.names)
        if name not in names:
            raise unknown_model(name, f"Models that this server offers: {', '.join(names) or 'none'}.")
        described = self._described(name, names[name])
        # A model whose configuration cannot be read is still listed; a request for it reports the error.
        with contextlib.suppress(NbtrainError, OSError):
            described["chat"] = await asyncio.to_thread(self.models.can_chat, name)
        # A checkpoint may be deleted while this code reads it.
        with contextlib.suppress(OSError):
            described["checkpoints"] = await asyncio.to_thread(self.models.checkpoints, name)
        return JSONAnswer(described)

    def _described(self, name: str, step: int) -> dict[str, Any]:
        found = {"id": name, "object": "model", "created": 0, "owned_by": "nbtrain", "step": step}
        if (loaded := self.models.loaded) is not None and loaded.name == name:
            found["max_model_len"] = loaded.positions
        return found

    async def completions(self, request: Request) -> Response:
        asked: CompletionRequest = openai_requests.read(CompletionRequest, await self._json(request))
        served = await self.models.get(asked.model)
        prompts = asked.prompts()
        count = self._checked(asked.max_tokens, "max_tokens")
        generation = asked.generation(
            DEFAULT_COMPLETION_TOKENS if count is None else count,
            logprobs=asked.logprobs,
            echo=bool(asked.echo),
        )
        form = Form(served.name, is_chat=False, wants_logprobs=asked.logprobs is not None)
        commands = [{**generation.to_dict(), "prompt": prompt} for prompt in prompts]
        return await self._answered(request, served, asked, form, commands, "")

    async def chat(self, request: Request) -> Response:
        asked: ChatRequest = openai_requests.read(ChatRequest, await self._json(request))
        served = await self.models.get(asked.model)
        messages = [message.as_text(number) for number, message in enumerate(asked.messages)]
        prompt = served.template.prompt(messages)
        count = self._checked(asked.most_tokens, "max_completion_tokens")
        generation = asked.generation(
            1 if count is None else count,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            also_stop=prompt.stop,
        )
        command = {**generation.to_dict(), "prompt": prompt.pieces}
        if count is None:
            # Without a limit in the request, generate as many tokens as fit.
            command |= {"max_new_tokens": None, "most_new_tokens": self.options.max_new_tokens}
        form = Form(served.name, is_chat=True, wants_logprobs=bool(asked.logprobs))
        return await self._answered(request, served, asked, form, [command], prompt.suffix)

    async def megatron(self, request: Request) -> Response:
        try:
            body = await self._json(request)
            prompts, generation = megatron.read(body)
        except megatron.BadRequest as problem:
            return JSONAnswer(str(problem), 400)
        try:
            self._checked(generation.max_new_tokens, "tokens_to_generate")
            served = await self.models.get(None)
            answer = await self._submitted(served, generation, prompts, bool(body.get("add_BOS")))
            working = megatron.answer_of(answer, prompts, generation, megatron.wants_beams(body))
            result = await self._unless_gone(request, answer, working)
        except Refusal as refusal:
            return JSONAnswer(refusal.message, refusal.status, dict(refusal.response().headers))
        return JSONAnswer(result)

    async def _submitted(
        self, served: Served, generation: Generation, prompts: list[str], is_begun: bool
    ) -> RequestEvents:
        # A prompt passed as a list of texts is encoded without the tokenizer's prefix.
        asked = [prompt if is_begun else [prompt] for prompt in prompts]
        commands = [{**generation.to_dict(), "prompt": prompt} for prompt in asked]
        return served.dispatcher.submit(commands, streams=False)

    async def _answered(
        self,
        request: Request,
        served: Served,
        asked: CompletionRequest | ChatRequest,
        form: Form,
        commands: list[dict[str, Any]],
        suffix: str,
    ) -> Response:
        """Answer a request for generated texts, in one response or as a stream."""
        started, n, usage = time.monotonic(), asked.n or 1, Usage()
        answer = served.dispatcher.submit(commands, form.is_chat, streams=bool(asked.stream))

        def first_text() -> None:
            self.metrics.first_text.observe(time.monotonic() - started)

        pieces = pieces_of(answer, n, usage, first_text, suffix)
        if not asked.stream:
            return JSONAnswer(await self._unless_gone(request, answer, whole_answer(form, pieces, usage)))
        # Status 200 can be sent only once the engine has accepted every text of the request.
        await self._unless_gone(request, answer, answer.accepted(), is_all=False)
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        limit = self._limit(answer)
        events = streamed_answer(form, pieces, usage, n * len(commands), with_usage)
        return EventStream(_until_over(events, limit), self.options.write_seconds, lambda: self._gone(answer))

    async def _unless_gone(
        self, request: Request, answer: RequestEvents, result: Coroutine[Any, Any, Any], is_all: bool = True
    ) -> Any:
        """Await and return the result.

        Raises ClientGone if the client disconnects first, and Refusal if the request exceeds its time limit.
        """
        limit = self._limit(answer)
        working = asyncio.ensure_future(result)
        leaving = asyncio.ensure_future(disconnected(request.receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            self._gone(answer)
            raise ClientGone
        finally:
            limit.cancel()
            for task in (working, leaving):
                task.cancel()
            if not working.done() or (is_all and working.exception() is not None):
                answer.cancel()

    def _gone(self, answer: RequestEvents) -> None:
        self.metrics.dropped.inc()
        answer.cancel()

    def _limit(self, answer: RequestEvents) -> asyncio.TimerHandle:
        seconds = self.options.request_seconds
        late = Refusal(
            504,
            f"the request was not completed within {seconds:g} s, the server's time limit.",
            code="timeout",
        )
        return asyncio.get_running_loop().call_later(seconds, answer.fail, late)

    def _checked(self, count: int | None, name: str) -> int | None:
        most = self.options.max_new_tokens
        if count is not None and most is not None and count > most:
            raise Refusal(
                400,
                f"{name} is too large: {count}. This server supports at most {most} completion tokens.",
                name,
                "invalid_value",
            )
        return count

    async def _json(self, request: Request) -> Any:
        """Read and parse the body. Raises Refusal if it is too large, arrives too slowly or is not JSON."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in JSON_TYPES:
            raise Refusal(
                415,
                f"Unsupported content type: '{kind}'. This API method only accepts 'application/json' "
                "requests.",
                code="unsupported_content_type",
            )
        most, body = self.options.max_body_bytes, bytearray()
        declared = request.headers.get("content-length", "")
        too_large = Refusal(
            413, f"the request body is larger than {most:,} bytes, the server's limit.", code="too_large"
        )
        if declared.isdigit() and int(declared) > most:
            raise too_large
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise Refusal(
                408, f"the request body was not received within {BODY_SECONDS:g} s.", code="timeout"
            ) from None
        try:
            return orjson.loads(bytes(body))
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"We could not parse the JSON body of your request: {error}.") from None


async def _until_over(events: AsyncIterator[bytes], limit: asyncio.TimerHandle) -> AsyncIterator[bytes]:
    try:
        async for one in events:
            yield one
    finally:
        limit.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return Refusal(404, f"Invalid URL ({request.method} {request.url.path})").response()
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        words = f"{request.method} is not allowed for {request.url.path}: use {allowed}."
        return Refusal(405, words, code="method_not_supported").response()
    return Refusal(error.status_code, str(error.detail)).response()


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _failed(request: Request, error: Exception) -> Response:
    return Refusal(
        500, "the server failed to answer this request; see the server's log for the error."
    ).response()


class Counted:
    """Middleware that counts responses by route and status and measures their duration."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = CLIENT_GONE, time.monotonic()

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, counting)
        finally:
            route = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.monotonic() - started)
