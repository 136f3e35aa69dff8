"""Parsing of requests, tokens and options without a server, and the queue of events that a client has not
read yet.
"""

import asyncio
import contextlib
import itertools
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, NbtrainError
from nbtrain.base.process import parent_death
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.serving import megatron, models, resident, server
from nbtrain.serving.app import Routes
from nbtrain.serving.chat import ChatPrompt
from nbtrain.serving.dispatch import MOST_EVENTS, Dispatcher, RequestEvents, refused
from nbtrain.serving.engine_process import EngineProcess, Loading
from nbtrain.serving.launched import Server
from nbtrain.serving.metrics import Metrics
from nbtrain.serving.models import Models, Served
from nbtrain.serving.openai_answers import Form, Piece, Usage, pieces_of, streamed_answer, whole_answer
from nbtrain.serving.openai_requests import UNIONS, ChatRequest, CompletionRequest, read
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.proxy import models_entry
from nbtrain.serving.refusals import Refusal
from nbtrain.serving.server import _socket
from nbtrain.serving.tokens import VARIABLE, _brought, token_of


def test_openais_defaults_and_vllms_names():
    asked = read(CompletionRequest, {"prompt": "a", "user": "x", "top_k": -1, "min_p": 0.1, "stop": "b"})
    generation = asked.generation(16)
    assert (generation.temperature, generation.top_k, generation.top_p, generation.min_p) == (
        1.0,
        0,
        1.0,
        0.1,
    )
    assert (generation.stop, generation.n, generation.seed) == (("b",), 1, None)
    asked = read(CompletionRequest, {"prompt": [1, 2], "logit_bias": {"5": -100}, "temperature": 0})
    assert asked.prompts() == [[1, 2]] and asked.generation(1).logit_bias == ((5, -100.0),)
    asked = read(ChatRequest, {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5})
    assert asked.most_tokens == 5


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({}, "Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter"),
        ({"prompt": []}, "Invalid 'prompt': empty array.", "prompt", "empty_array"),
        ({"prompt": ["a"] * 129}, "maximum length 128, but got 129", "prompt", "array_above_max_length"),
        ({"prompt": [1, -1]}, UNIONS["prompt"], "prompt", "invalid_type"),
        ({"prompt": {"text": "a"}}, UNIONS["prompt"], "prompt", "invalid_type"),
        ({"prompt": "a", "stop": ["b", 3]}, "must be a string or a list of strings.", "stop", "invalid_type"),
        ({"prompt": "a", "temperature": "1"}, "should be a valid number.", "temperature", "invalid_type"),
        ({"prompt": "a", "top_p": 2}, "top_p = 2.0 must be from 0 to 1", "top_p", "invalid_value"),
        (
            {"prompt": "a", "n": 65},
            "Expected a value <= 64, but got 65 instead.",
            "n",
            "integer_above_max_value",
        ),
        (
            {"prompt": "a", "logprobs": -1},
            "Expected a value >= 0, but got -1 instead.",
            "logprobs",
            "integer_below_min_value",
        ),
        (
            {"prompt": "a", "logit_bias": {"9" * 20: 1}},
            f"logit_bias = (({'9' * 20}, 1.0),) must be at most 1,024 biases, each for a token id from 0 to "
            "4,294,967,295.",
            "logit_bias",
            "invalid_value",
        ),
        ({"prompt": "a", "colour": 1}, "Unknown parameter: 'colour'.", "colour", "unknown_parameter"),
        ({"prompt": "a", "suffix": "b"}, "'suffix' is not supported", "suffix", "unsupported_parameter"),
        ({"prompt": "a", "best_of": 3}, "'best_of' does not support 3", "best_of", "unsupported_value"),
    ],
)
def test_refusals_name_the_field(body, message, param, code):
    with pytest.raises(Refusal) as refusal:
        asked = read(CompletionRequest, body)
        asked.prompts()
        asked.generation(1)
    found = refusal.value.body()["error"]
    assert message in found["message"]
    assert (refusal.value.status, found["param"], found["code"]) == (400, param, code)
    assert found["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"tools": [{}]}, "tools", "unsupported_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "unsupported_value"),
        ({"modalities": ["smell"]}, "modalities[0]", "invalid_value"),
    ],
)
def test_refusals_of_chats(body, param, code):
    with pytest.raises(Refusal) as refusal:
        read(ChatRequest, {"messages": [{"role": "user", "content": "a"}], **body})
    assert (refusal.value.param, refusal.value.code) == (param, code)


@pytest.mark.parametrize(
    ("numbers", "is_chat", "words"),
    [
        (
            (256, 400, 5),
            False,
            "This model's maximum context length is 256 tokens, however you requested 405 tokens (400 in "
            "your prompt; 5 for the completion).",
        ),
        ((256, 400, 1), True, "is 256 tokens. However, your messages resulted in 400 tokens."),
        (
            (256, 100, 200),
            True,
            "is 256 tokens. However, you requested 300 tokens (100 in the messages, 200 in the completion).",
        ),
    ],
)
def test_a_prompt_that_is_too_long_has_openais_words(numbers, is_chat, words):
    """A prompt that is too long is rejected in OpenAI's own words and with its code: LiteLLM searches the
    message, and LangChain the code.
    """
    counts = dict(zip(("positions", "prompt_tokens", "max_new_tokens"), numbers))
    refusal = refused({"error": "ContextLengthError", "message": "too long", **counts}, is_chat)
    found = refusal.body()["error"]
    assert words in found["message"] and refusal.status == 400
    assert (found["code"], found["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert found["param"] == ("messages" if is_chat else "prompt")


def entry(token: str, logprob: float, offset: int, *top: tuple[str, float]) -> dict:
    """Return the log-probability entry of a token in the format of the engine."""
    likely = [{"token": text, "logprob": value, "bytes": [1]} for text, value in top]
    return {"token": token, "logprob": logprob, "bytes": [1], "offset": offset, "top": likely}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("is_chat", "echo"), [(False, False), (False, True), (True, False)])
def test_the_token_that_ends_a_text_has_its_entry(is_stream, is_chat, echo):
    """The token that ends a text has an entry too: lm-eval drops the last entry, because it expects an
    additional token there.
    """
    begin = 2 if echo else 0

    async def events():
        if echo:
            prompt = {"text": "ab", "first": "a", "tokens": [1, 2], "offsets": [0, 1]}
            yield 0, {"index": 0, "prompt": prompt}
            yield 0, {"prompt_logprobs": [entry("b", -0.5, 1, ("b", -0.5))]}
        yield 0, {"index": 0, "text": "c", "logprobs": [entry("c", -1.0, 2, ("d", -0.25))]}
        yield 0, {"index": 0, "text": "", "finish_reason": "stop", "end_logprob": entry("<e>", -2.5, 3)}
        yield 0, {"end": True, "prompt_tokens": 2, "new_tokens": 1}

    async def found() -> list[dict]:
        form, usage = Form("m", is_chat, wants_logprobs=True), Usage()
        pieces = pieces_of(events(), 1, usage, lambda: None)
        if not is_stream:
            return (await whole_answer(form, pieces, usage))["choices"]
        lines = [line async for line in streamed_answer(form, pieces, usage, 1, with_usage=False)]
        chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines if b"[DONE]" not in line]
        return [choice for chunk in chunks for choice in chunk["choices"]]

    logprobs = [choice["logprobs"] for choice in asyncio.run(found()) if choice["logprobs"]]
    if is_chat:
        entries = [one for part in logprobs for one in part["content"]]
        assert [one["token"] for one in entries] == ["c", "<e>"] and entries[1]["logprob"] == -2.5
        return
    joined = {key: [one for part in logprobs for one in part[key]] for key in logprobs[0]}
    assert joined["tokens"] == ["a", "b", "c", "<e>"][2 - begin :]
    assert joined["token_logprobs"] == [None, -0.5, -1.0, -2.5][2 - begin :]
    # Where each token begins in prompt and text together, also without the echo.
    assert joined["text_offset"] == [0, 1, 2, 3][2 - begin :]
    # The token itself is among the likeliest, or follows them, also if none are requested.
    assert joined["top_logprobs"][begin:] == [{"d": -0.25, "c": -1.0}, {"<e>": -2.5}]


def test_which_prompts_the_tokenizer_begins():
    """The tokenizer's prefix is added to text prompts, but not to token ids, chats, or Megatron's prompts
    without add_BOS.
    """
    seen: list = []

    def submit(commands: list[dict], is_chat: bool = False, streams: bool = True) -> None:
        seen.append([command["prompt"] for command in commands])
        raise Refusal(429, "full")

    async def get(name: str | None) -> SimpleNamespace:
        template = SimpleNamespace(prompt=lambda messages: ChatPrompt(["asked"]))
        return SimpleNamespace(name="m", dispatcher=SimpleNamespace(submit=submit), template=template)

    routes = Routes(ServeOptions(), SimpleNamespace(get=get), Metrics())
    client = TestClient(routes.app(None, contextlib.nullcontext))
    for path, body in (
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[5, 6]]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api", {"prompts": ["a"]}),
        ("/api", {"prompts": ["a"], "add_BOS": True}),
    ):
        assert client.post(path, json=body).status_code == 429
    assert seen == [["a", "b"], [[5, 6]], [["asked"]], [["a"]], ["a"]]


@pytest.mark.parametrize(
    ("is_single", "status", "said"),
    [(True, 503, {"status": "loading"}), (False, 200, {"status": "ok", "loaded": False})],
)
def test_a_server_is_not_healthy_while_its_one_model_loads(is_single, status, said):
    """A server of one run is unhealthy while its model is loading. A server of all runs is healthy, and loads
    a model when a request names it.
    """
    models = SimpleNamespace(is_ending=False, loaded=None, is_single=is_single)
    answer = TestClient(Routes(ServeOptions(), models, Metrics()).app(None, contextlib.nullcontext)).get(
        "/health"
    )
    assert (answer.status_code, answer.json()) == (status, said)


def test_the_offsets_of_an_echoed_prompt_are_the_engine_s():
    prompt = {"text": "ab", "first": "<s>", "tokens": [1, 2, 3], "offsets": [0, 0, 1]}
    entries = [{"token": letter, "logprob": -1.0, "top": [], "offset": 2} for letter in "abc"]
    piece = Piece(0, "c", entries[2:], "length", {**prompt, "logprobs": entries[:2]})
    choice = Form("m", is_chat=False, wants_logprobs=True).choice(piece, is_chunk=False)
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_a_message_without_its_text_is_refused():
    """Only an assistant's message may have no content, as in OpenAI's API; any other is rejected."""
    asked = read(ChatRequest, {"messages": [{"role": "assistant"}, {"role": "user", "content": ""}]})
    texts = [message.as_text(number)["content"] for number, message in enumerate(asked.messages)]
    assert texts == ["", ""]
    for message in ({"role": "user"}, {"role": "system", "content": None}):
        asked = read(ChatRequest, {"messages": [{"role": "user", "content": "a"}, message]})
        with pytest.raises(Refusal) as refusal:
            asked.messages[1].as_text(1)
        assert (refusal.value.status, refusal.value.param) == (400, "messages[1].content")
        assert refusal.value.code == "missing_required_parameter"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompts argument required"),
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [""]}, "Empty prompts require add_BOS=true"),
        ({"prompts": ["a"] * 129}, "Maximum number of prompts is 128"),
        ({"prompts": ["a"], "tokens_to_generate": 0}, "tokens_to_generate=0 implies logprobs should be True"),
        ({"prompts": ["a"], "top_k": 5, "top_p": 0.5}, "cannot set both top-k and top-p samplings."),
        ({"prompts": ["a", "b"], "beam_width": 2}, "When doing beam_search, batch size must be 1"),
        ({"prompts": ["a"], "top_p_decay": 0.5}, "top_p_decay is not supported: omit it"),
        ({"prompts": ["a"], "temperature": 0.5, "what": 1}, "what is not a known field"),
        ({"prompts": ["a"], "temperature": "hot"}, "temperature must be a number from 0 to 100"),
    ],
)
def test_megatrons_errors_are_its_own(body, message):
    with pytest.raises(megatron.BadRequest) as error:
        megatron.read(body)
    assert str(error.value) == message


def test_megatrons_words():
    _, generation = megatron.read(
        {"prompts": ["a"], "top_k": 1, "stop_on_double_eol": True, "random_seed": 3}
    )
    assert (generation.temperature, generation.stop, generation.seed) == (0.0, ("\n\n",), 3)
    assert generation.max_new_tokens == 64 and generation.echo


def test_megatrons_beam_of_one():
    """Megatron's beam search of width 1 is greedy; the answer includes the prompt and a score that counts the
    end token, as in inference/beams.py.
    """
    body = {"prompts": ["a"], "beam_width": 1, "temperature": 0.7, "length_penalty": 2.0}
    prompts, generation = megatron.read(body)
    assert (generation.temperature, generation.num_beams, generation.n) == (0.0, 1, 1)

    async def events():
        entries = [{"token": letter, "logprob": -1.0} for letter in "bc"]
        yield 0, {"index": 0, "text": "bc", "logprobs": entries}
        yield 0, {"index": 0, "text": "", "finish_reason": "stop", "end_logprob": {"logprob": -2.5}}
        yield 0, {"end": True}

    async def answered() -> dict:
        return await megatron.answer_of(events(), prompts, generation, megatron.wants_beams(body))

    assert asyncio.run(answered()) == {"text": ["abc"], "segments": [["abc"]], "scores": [-4.5 / 3**2]}


def test_where_the_token_is_from(tmp_path, monkeypatch):
    """A token file that other users can read and a token that is too short are rejected; without a token, the
    server generates one.
    """
    monkeypatch.delenv(VARIABLE, raising=False)
    made, source = token_of(None)
    assert len(made) == 48 and source is None and token_of(None)[0] != made
    monkeypatch.setenv(VARIABLE, "x" * 20)
    assert token_of(None) == ("x" * 20, VARIABLE)
    file = tmp_path / "token"
    file.write_text("y" * 20 + "\n")
    file.chmod(0o600)
    assert token_of(str(file)) == ("y" * 20, f"--token-file {file}")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read the file; run `chmod 600"):
        token_of(str(file))
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(ConfigError, match="must be at least 16 visible ASCII characters"):
        token_of(str(file))
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        token_of(str(tmp_path / "none"))


def test_bytes_that_are_no_text_are_no_token():
    """Invalid bytes in a header or an address count as a wrong token, and do not stop the server."""
    for headers, query in (
        ([(b"authorization", b"Bearer \xff\xfe")], b""),
        ([(b"authorization", b"")], b"token=%ff&token"),
        ([], b"\xff=\xff"),
    ):
        assert b"t" * 20 not in _brought({"headers": headers, "query_string": query})
    assert _brought({"headers": [], "query_string": b"token=" + b"t" * 20}) == [b"t" * 20]


def test_options_out_of_range():
    for options, message in (
        ({"port": 70000}, "port = 70000 must be from 0 (choose a free port) to 65535."),
        ({"max_queue": -1}, "max_queue = -1 must be at least 0."),
        ({"grace_seconds": 0}, "grace_seconds = 0 must be above 0."),
        (
            {"step": 100},
            "step = 100 selects a checkpoint of one run, so name the run (`nbtrain serve RUN --step 100`). "
            "Without a run, the server offers the newest checkpoint of every run.",
        ),
        ({"dtype": "int4"}, "dtype = 'int4' must be one of auto, fp32, bf16, fp16."),
    ):
        with pytest.raises(ConfigError) as error:
            ServeOptions(**options)
        assert str(error.value) == message


class Process:
    """A stand-in for an engine process that records the lines it receives."""

    def __init__(self, *arguments):
        self.sent: list[dict] = []
        self.ready = {"max_batch": 2}
        self._ids = itertools.count()

    def new_id(self) -> str:
        return str(next(self._ids))

    def send(self, line: dict) -> None:
        self.sent.append(line)


@pytest.fixture
def dispatcher(monkeypatch):
    """Return a function that creates a dispatcher for that process; it must be called inside a running event
    loop.
    """
    from nbtrain.serving import dispatch
    from nbtrain.serving.metrics import Metrics

    monkeypatch.setattr(dispatch, "EngineProcess", Process)
    return lambda: Dispatcher(None, 3, Metrics())


def event(text: str, **more) -> dict:
    return {"id": "0", "index": 0, "text": text, "tokens": [1], **more}


def test_what_nobody_takes_is_joined(dispatcher):
    """If the client does not read, a thousand events are merged into 256 without losing a character."""

    async def play() -> list[dict]:
        answer = dispatcher().submit([{"n": 1}])
        for number in range(1000):
            answer.put(event(f"{number} "))
        answer.put(event("end", finish_reason="stop", new_tokens=1001))
        answer.put({"id": "0", "end": True})
        assert len(answer._events) <= MOST_EVENTS + 1
        return [one async for _, one in answer]

    *texts, end = asyncio.run(play())
    assert "".join(one["text"] for one in texts) == "".join(f"{number} " for number in range(1000)) + "end"
    assert sum(len(one["tokens"]) for one in texts) == 1001
    assert texts[-1]["finish_reason"] == "stop" and end["end"]


def test_no_more_may_wait_than_the_queue_holds(dispatcher):
    """With two slots and three places in the queue, a sixth text is rejected. A request that could never fit
    gets status 400, which clients do not retry.
    """

    async def play() -> None:
        made = dispatcher()
        with pytest.raises(Refusal) as refusal:
            made.submit([{"n": 6}])
        assert (refusal.value.status, refusal.value.message) == (
            400,
            "the request is for 6 texts at once; the maximum is 5. Split the request.",
        )
        first: RequestEvents = made.submit([{"n": 2}, {"n": 3}])
        with pytest.raises(Refusal, match="already running or waiting: 5; texts in this request: 1"):
            made.submit([{"n": 1}])
        first.cancel()
        assert [line["kind"] for line in made.process.sent] == ["generate", "generate", "cancel", "cancel"]
        made.submit([{"n": 5}])
        made.fail_all(Refusal(503, "over"))
        with pytest.raises(Refusal, match="over"):
            made.submit([{"n": 1}])

    asyncio.run(play())


def test_a_request_that_cannot_be_sent_takes_no_place(dispatcher):
    async def play() -> None:
        made = dispatcher()
        send = made.process.send

        def failing(line: dict) -> None:
            if line.get("prompt") == "b":
                raise TypeError("an integer exceeds 64 bits")
            send(line)

        made.process.send = failing
        with pytest.raises(TypeError):
            made.submit([{"n": 1, "prompt": "a"}, {"n": 1, "prompt": "b"}])
        assert not made.is_busy and {"kind": "cancel", "id": "0"} in made.process.sent

    asyncio.run(play())


def test_an_answer_ends_with_what_went_wrong(dispatcher):
    """If an answer fails, the text generated so far is delivered before the error."""

    async def play() -> list[str]:
        answer = dispatcher().submit([{"n": 1}])
        answer.put(event("a"))
        answer.fail(Refusal(504, "too late"))
        given = []
        with pytest.raises(Refusal, match="too late"):
            async for _, one in answer:
                given.append(one["text"])
        return given

    assert asyncio.run(play()) == ["a"]


def test_a_refused_request_is_known_before_a_stream_begins(dispatcher):
    async def play() -> None:
        answer = dispatcher().submit([{"n": 1}])
        answer.put({"id": "0", "error": "ConfigError", "message": "no room"})
        with pytest.raises(Refusal, match="no room") as refusal:
            await answer.accepted()
        assert refusal.value.status == 400
        taken = dispatcher().submit([{"n": 1}])
        taken.put({"id": "0", "accepted": True})
        await asyncio.wait_for(taken.accepted(), 10)

    asyncio.run(play())


def test_an_engine_that_is_closed_lets_nobody_wait(monkeypatch, tmp_path):
    """Closing an engine wakes up everything that waits for it: a thread that loads a model, and a running
    answer.
    """
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    engine = EngineProcess(Loading("a run"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.wait_until_ready)
        engine.close()
        with pytest.raises(NbtrainError, match="was unloaded while it was still loading"):
            waiting.result(600)
        with pytest.raises(NbtrainError, match="was unloaded while it was generating"):
            pool.submit(next, engine.stream({"prompt": "a"})).result(600)


class AnyRun(Models):
    """The models of a server of all runs, with a stand-in that loads nothing."""

    def __init__(self, step: int):
        super().__init__(ServeOptions(), Metrics(), print)
        self.newest, self.step = step, step
        self.loads = 0

    def names(self) -> dict[str, int]:
        return {"one": self.newest}

    def checkpoints(self, name: str) -> list[int]:
        return [50, 100]

    async def load(self, folder: Path, step: int | None = None) -> Served:
        self.loads += 1

        async def close() -> None: ...

        dispatcher = SimpleNamespace(ended=asyncio.Event(), is_busy=False, close=close)
        run_id = models._run_id(RunDir(folder))
        name = folder.name if step is None else f"{folder.name}@{step}"
        self.loaded = Served(name, step or self.step, dispatcher, None, {}, run_id=run_id)
        return self.loaded


def test_a_model_whose_process_has_ended_is_loaded_again():
    """A model whose process has ended is loaded again, also for requests that name no model, such as
    Megatron's.
    """

    async def play() -> None:
        models = AnyRun(step=100)
        first = await models.get("one")
        assert await models.get(None) is first and models.loads == 1
        first.dispatcher.ended.set()
        assert await models.get(None) is not first and models.loads == 2

    asyncio.run(play())


def test_a_newer_checkpoint_is_loaded_once():
    """A newer checkpoint is loaded once, even if it is torn and an earlier one is used instead. After a
    rollback, the older one is loaded.
    """

    async def play() -> None:
        models = AnyRun(step=100)
        first = await models.get("one")
        models.newest = 200
        second = await models.get("one")
        assert second is not first and second.step == 100
        assert await models.get("one") is second and models.loads == 2
        models.newest = 50
        assert await models.get("one") is not second and models.loads == 3

    asyncio.run(play())


def test_an_older_checkpoint_is_a_model_too():
    """RUN@STEP is loaded once and stays while the run saves; a step without a checkpoint is refused."""

    async def play() -> None:
        models = AnyRun(step=100)
        old = await models.get("one@50")
        models.newest = 200
        assert await models.get("one@50") is old and (old.name, old.step) == ("one@50", 50)
        assert (await models.get("one")).step == 100 and models.loads == 2
        for name in ("one@70", "one@", "one@x"):
            with pytest.raises(Refusal, match="Checkpoints of one: one@50, one@100"):
                await models.get(name)

    asyncio.run(play())


def test_a_run_that_was_trained_anew_is_another_model(workspace, monkeypatch):
    """A run that was deleted and trained again under the same name counts as another model, so a server or
    notebook reloads it.
    """
    run = RunDir.named("one")
    run.path.mkdir(parents=True)

    def trained(run_id: str) -> None:
        files.write_json(run.run_json, {"run_id": run_id})

    async def play() -> None:
        trained("first")
        several = AnyRun(step=100)
        first = await several.get("one")
        assert await several.get("one") is first
        trained("second")
        first.dispatcher.is_busy = True
        with pytest.raises(Refusal, match="one is answering another request, and only one model"):
            await several.get("one")
        first.dispatcher.is_busy = False
        assert await several.get("one") is not first and several.loads == 2

    asyncio.run(play())

    def engine(loading: Loading, note: object) -> SimpleNamespace:
        return SimpleNamespace(is_alive=True, close=lambda: None)

    monkeypatch.setattr(resident, "EngineProcess", engine)
    kept, loading = resident.Resident(), Loading(str(run.path))
    trained("first")
    old = kept._engine_of(loading)
    assert kept._engine_of(loading) is old
    trained("second")
    assert kept._engine_of(loading) is not old


class Answers(BaseHTTPRequestHandler):
    """An HTTP server that echoes the body of a completion request, and answers any other path with an error
    that is not JSON.
    """

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.path == "/v1/completions" else 500)
        self.end_headers()
        self.wfile.write(body if self.path == "/v1/completions" else b"Internal Server Error\n")

    def log_message(self, *arguments: object) -> None: ...


def test_a_notebooks_server_is_asked_without_a_proxy(monkeypatch):
    """A notebook's request to its own server ignores the environment's proxy: the proxy could not reach the
    server, and would see the token.
    """
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with HTTPServer(("127.0.0.1", 0), Answers) as answers:
        url = f"http://127.0.0.1:{answers.server_port}"
        launched = Server.__new__(Server)
        launched.url, launched.token = url, "token"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(answers.serve_forever, 0.01)
            try:
                assert launched.post("/completions", {"prompt": "a"}) == {"prompt": "a"}
                with pytest.raises(NbtrainError) as refusal:
                    launched.post("/other", {})
            finally:
                answers.shutdown()
    assert (
        str(refusal.value) == f"{url}/v1/other: the server responded with status 500: Internal Server Error"
    )


def test_a_socket_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"127.0.0.1, port {port}: the port is in use by another program"
        ):
            _socket(ServeOptions(port=port))


def test_a_unix_socket_replaces_nothing_but_a_dead_one(tmp_path):
    file, dead = tmp_path / "results.json", tmp_path / "socket"
    file.write_text("{}")
    with pytest.raises(ConfigError) as refusal:
        _socket(ServeOptions(uds=str(file)))
    assert str(refusal.value) == f"--uds {file}: the path exists and is not a socket. Choose another path."
    assert file.read_text() == "{}"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead))
    with _socket(ServeOptions(uds=str(dead))) as listening:
        listening.listen()
        with pytest.raises(ConfigError, match=f"--uds {dead}: the socket is in use by another program"):
            _socket(ServeOptions(uds=str(dead)))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_server_removes_its_own_socket_alone(monkeypatch, tmp_path, is_replaced):
    path = tmp_path / "socket"

    async def serving(*arguments: object) -> int:
        assert path.is_socket()
        if is_replaced:
            path.rename(tmp_path / "moved")
            path.write_text("of another program")
        return 0

    monkeypatch.setattr(server, "_serve", serving)
    assert server.serve(ServeOptions(uds=str(path)), None, print) == 0
    assert path.exists() == is_replaced


@pytest.mark.parametrize("is_by_jupyter", [False, True])
def test_only_jupyters_server_ends_with_its_parent(monkeypatch, is_by_jupyter):
    """A server started by Jupyter ends with its parent process. A server that a user starts, as in `nohup
    nbtrain serve --uds PATH &`, outlives its shell.
    """
    asked = []
    monkeypatch.setattr(parent_death, "die_with_parent", lambda: asked.append("end"))
    monkeypatch.setattr(server, "serve", lambda options, token, say: asked.append(options.uds) or 0)
    arguments = models_entry()["command"][3:] if is_by_jupyter else ["serve", "--uds", "{unix_socket}"]
    assert cli.main(arguments) == 0
    assert asked == ["end"] * is_by_jupyter + ["{unix_socket}"]
