"""OpenAI's client with a real server: every kind of answer, errors, and clients that disconnect or read
slowly.
"""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import urllib.error
import urllib.request

import openai
import psutil
import pytest
import torch

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.loaded import load
from tests.inference import made
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

GREEDY = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=served.server.base_url, api_key=served.server.token, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference(served):
    """Return (the served model, loaded in this process, and its tokenizer)."""
    loaded = load(served.run)
    return loaded.model, loaded.tokenizer


def expected(reference, prompt: str | list[int], count: int = 12) -> str:
    """Return the greedy continuation."""
    model, tokenizer = reference
    ids = [int(token) for token in tokenizer.encode(prompt)] if isinstance(prompt, str) else prompt
    tokens = [*ids, *made.without_cache(model, ids, count)]
    whole, before = tokenizer.decode_finished(tokens)[0], tokenizer.decode_finished(ids)[0]
    return whole[len(before) :]


def send(served, path: str, body=None, method: str | None = None, token: bool = True, **headers):
    """Return (status, answer) of a request without the client."""
    headers = {"Content-Type": "application/json", **headers}
    if token:
        headers["Authorization"] = f"Bearer {served.server.token}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{served.server.url}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def figure(served, name: str) -> float:
    """Return one value of /metrics."""
    lines = send(served, "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


# --- texts --------------------------------------------------------------------------------------------------


def test_models(client, served):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by, model.step, model.max_model_len) == ("talks", "nbtrain", 7, 256)
    assert client.models.retrieve("talks").id == "talks"
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist") as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_a_completion_is_what_the_model_writes(client, reference):
    answer = client.completions.create(model="talks", prompt="One day", **GREEDY)
    (choice,) = answer.choices
    assert choice.text == expected(reference, "One day")
    assert (choice.finish_reason, choice.index, choice.logprobs) == ("length", 0, None)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    prompt_tokens = len(reference[1].encode("One day"))
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, 12)
    assert usage.total_tokens == prompt_tokens + 12


def test_the_client_without_a_single_option(client):
    """If the client sends only the model and a prompt or messages, the server's defaults apply."""
    answer = client.completions.create(model="talks", prompt="One day")
    assert answer.usage.completion_tokens <= 16
    assert client.chat.completions.create(model="talks", messages=[{"role": "user", "content": "Hi"}]).choices


@pytest.mark.parametrize(
    "prompt", [["One day", "The next"], [[5, 6, 7], [8, 9, 10, 11]]], ids=["texts", "ids"]
)
def test_several_prompts_are_numbered_through(client, reference, prompt):
    answer = client.completions.create(model="talks", prompt=prompt, n=2, **GREEDY)
    texts = {choice.index: choice.text for choice in answer.choices}
    assert texts == {number: expected(reference, prompt[number // 2]) for number in range(4)}


def test_a_stream_is_the_same_text(client, reference):
    """A stream returns the same text; each choice ends with its finish_reason, and usage follows in a last
    chunk without choices.
    """
    stream = client.completions.create(
        model="talks", prompt="One day", n=2, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = list(stream)
    for index in range(2):
        parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(part.text for part in parts) == expected(reference, "One day")
        assert [part.finish_reason for part in parts][-1] == "length" and len(parts) > 3
    assert last.choices == [] and last.usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks)


def test_a_chat_uses_the_runs_template(client, reference):
    """A chat uses the run's template and encodes earlier answers separately, as in training; the trailing
    newline of the answer is stripped.
    """
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "are you?"}]},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "And now?"},
    ]
    pieces = [
        "<|system|>\nBe brief.\n<|user|>\nHow are you?\n<|assistant|>\n",
        "Fine.\n",
        "<|user|>\nAnd now?\n<|assistant|>\n",
    ]
    ids = [int(token) for piece in pieces for token in reference[1].encode(piece)]
    answer = client.chat.completions.create(model="talks", messages=messages, **GREEDY)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and answer.object == "chat.completion"
    assert choice.message.content == expected(reference, ids).removesuffix("\n")
    assert answer.usage.prompt_tokens == len(ids)
    stream = client.chat.completions.create(model="talks", messages=messages, stream=True, **GREEDY)
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"


def test_stop_and_seed(client):
    how = {"model": "talks", "prompt": "One day", "max_tokens": 30, "temperature": 1.0, "seed": 5}
    first, second = (client.completions.create(**how).choices[0].text for _ in range(2))
    assert first == second
    assert client.completions.create(**{**how, "seed": 6}).choices[0].text != first
    stop = first[8:11]
    (choice,) = client.completions.create(**how, stop=["never", stop]).choices
    assert choice.text == first[: first.index(stop)] and choice.finish_reason == "stop"


def test_logprobs_of_completions_and_echo(client, reference):
    """Logprobs of completions contain the tokens, their offsets and the alternatives; the first token of the
    prompt has no logprob.
    """
    model, tokenizer = reference
    answer = client.completions.create(model="talks", prompt="One day", echo=True, logprobs=2, **GREEDY)
    (choice,) = answer.choices
    text, found = choice.text, choice.logprobs
    assert text == "One day" + expected(reference, "One day")
    ids = [int(token) for token in tokenizer.encode("One day")]
    ids += made.without_cache(model, ids, 12)
    with torch.inference_mode():
        values = model(torch.tensor([ids]))[0].log_softmax(-1)
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    for place, (token, logprob) in enumerate(zip(ids[1:], found.token_logprobs[1:])):
        assert logprob == pytest.approx(float(values[place, token]), abs=1e-4)
        assert max(found.top_logprobs[place + 1].values()) == pytest.approx(
            float(values[place].max()), abs=1e-4
        )
    for before, token, offset in zip(["", *found.tokens], found.tokens, found.text_offset):
        if not (before.startswith("bytes:") or token.startswith("bytes:")):
            assert text[offset : offset + len(token)] == token
    only = client.completions.create(model="talks", prompt="One day", echo=True, logprobs=0, max_tokens=0)
    assert only.choices[0].text == "One day" and only.usage.completion_tokens == 0
    assert only.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        found.token_logprobs[1 : len(only.choices[0].logprobs.tokens)], abs=1e-4
    )


def test_logprobs_of_a_chat(client, reference):
    messages = [{"role": "user", "content": "Hi"}]
    answer = client.chat.completions.create(
        model="talks", messages=messages, logprobs=True, top_logprobs=3, **GREEDY
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 12
    written = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="ignore")
    assert written.removesuffix("\n") == answer.choices[0].message.content.replace("\ufffd", "")
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob == entry.top_logprobs[0].logprob


def test_texts_at_once_are_those_alone(client, reference):
    """Twelve texts on four slots equal the texts that are generated alone."""
    prompts = [f"{word} {number} and" for number in range(4) for word in ("One", "A long walk over", "x")]
    texts = [expected(reference, prompt) for prompt in prompts]
    assert len(set(texts)) == len(prompts)

    def ask(prompt: str) -> str:
        return client.completions.create(model="talks", prompt=prompt, **GREEDY).choices[0].text

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == texts


def test_megatrons_clients(served, reference):
    """Megatron's clients can use PUT /api with the token in the address, because they cannot set a header."""
    path = f"/api?token={served.server.token}"
    body = {"prompts": ["One day", "The next"], "tokens_to_generate": 12, "top_k": 1, "logprobs": True}
    status, answer = send(served, path, body, "PUT", token=False)
    found = json.loads(answer)
    assert status == 200
    tokenizer: Tokenizer = reference[1]
    for number, prompt in enumerate(body["prompts"]):
        text = found["text"][number]
        assert (
            text.startswith(prompt) and len(found["segments"][number]) == len(found["logprobs"][number]) + 1
        )
        assert len(found["segments"][number]) <= len(tokenizer.encode(prompt)) + 12
    body = {"prompts": ["One day"], "tokens_to_generate": 5, "beam_width": 3}
    found = json.loads(send(served, path, body, "PUT", token=False)[1])
    assert len(found["text"]) == 3 and found["scores"] == sorted(found["scores"], reverse=True)
    assert send(served, path, {"prompts": "One day"}, "PUT") == (400, '"prompts is not a list of strings"')


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 250, "prompt": "a"}, "This server supports at most 200 completion tokens."),
        (
            {"max_tokens": 200, "prompt": [1] * 100},
            "This model's maximum context length is 256 tokens, however you requested 300 tokens",
        ),
        ({"prompt": [1, 500]}, "token id 500 in the prompt must be from 0 to 319."),
        ({"prompt": "a", "temperature": -1}, "temperature = -1.0 must be at least 0"),
        ({"prompt": "a", "suffix": "b"}, "'suffix' is not supported"),
        ({"prompt": "a", "best_of": 3}, "'best_of' does not support 3"),
        ({"prompt": "a", "extra_body": {"no_such": 1}}, "Unknown parameter: 'no_such'."),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_say_what_is_wrong(client, changes, message, stream):
    """A bad request is answered with status 400 before a stream begins, and the client does not retry it."""
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="talks", stream=stream, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_by_name(client, changes, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="talks", messages=[{"role": "user", "content": "Hi"}], **changes)
    assert error.value.param == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_past_the_models_positions(client, stream):
    with pytest.raises(openai.BadRequestError, match="your messages resulted in") as error:
        messages = [{"role": "user", "content": "word " * 400}]
        client.chat.completions.create(model="talks", messages=messages, stream=stream)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")


def test_chat_messages_that_have_no_place(client):
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].role = 'robot' must be one of system"):
        client.chat.completions.create(model="talks", messages=[{"role": "robot", "content": "Hi"}])
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="the model reads only text, not image_url"):
        client.chat.completions.create(model="talks", messages=[{"role": "user", "content": picture}])


def test_the_token_is_asked_for(served):
    """Every path except /health requires the token; a wrong token is rejected like a missing one."""
    for path in ("/", "/metrics", "/v1/models", "/api"):
        status, answer = send(served, path, token=False)
        assert status == 401 and "Authorization: Bearer TOKEN" in answer
    assert send(served, "/v1/models", token=False, Authorization="Bearer wrong")[0] == 401
    assert send(served, f"/v1/models?token={served.server.token}", token=False)[0] == 200
    assert send(served, "/v1/models", token=False, Authorization=f"token {served.server.token}")[0] == 200
    assert send(served, "/health", token=False) == (200, '{"status":"ok","loaded":true}')
    with (
        openai.OpenAI(base_url=served.server.base_url, api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError, match="Incorrect API key provided") as error,
    ):
        client.models.list()
    assert error.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "could not parse the JSON body"),
        (b"[1]", 400, "must be a JSON object."),
        (b"{}", 400, "Missing required parameter: 'prompt'."),
        (b'{"prompt": 5}', 400, "prompt"),
        (b'{"prompt": ""}', 200, "text_completion"),
        (b'{"prompt": "a", "n": 100}', 400, "Expected a value <= 64, but got 100 instead."),
        (b'{"prompt": "a", "stop": ["", "b"]}', 400, "stop = "),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', 400, "the keys of logit_bias must be token ids"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "could not parse the JSON body"),
        (b"\xff\xfe", 400, "could not parse the JSON body"),
        (b'{"prompt": "' + b"a" * 30_000 + b'"}', 413, "the request body is larger than 20,000 bytes"),
    ],
)
def test_malformed_and_oversized_bodies(served, body, status, message):
    found, answer = send(served, "/v1/completions", body)
    assert (found, message in answer) == (status, True), answer


def test_other_routes_methods_and_types(served):
    """Unknown paths, methods and content types are answered with an error in OpenAI's format."""
    for path, method, headers, status in (
        ("/v2", "GET", {}, 404),
        ("/v1/completions", "GET", {}, 405),
        ("/v1/completions", "POST", {"Content-Type": "text/plain"}, 415),
    ):
        found, answer = send(served, path, b"{}" if method == "POST" else None, method, **headers)
        assert found == status and set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


def test_more_than_can_wait_is_refused_at_once(client, served):
    """With four texts running and eight waiting, further requests are answered with 429, which the client may
    retry.
    """
    with engine_held(served, FULL):
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model="talks", prompt="a")
        assert "already running or waiting: 12" in str(error.value)
        assert error.value.response.headers["retry-after"] == "1"
    wait_until(lambda: figure(served, "nbtrain_running_texts") == 0, "texts are running")
    assert client.completions.create(model="talks", prompt="a").choices


# --- clients that disconnect, stall or fail -----------------------------------------------------------------


def connected(served, body: dict, path: str = "/v1/completions") -> http.client.HTTPConnection:
    address = served.server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=600)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {served.server.token}"}
    connection.request("POST", path, json.dumps(body), headers)
    return connection


# As many texts as may run or wait, which is at least a second of work.
FULL = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "n": 12}


@contextlib.contextmanager
def engine_held(served, body: dict):
    """Suspend the engine while a request is running, and yield the request's connection.

    On a slow machine, all texts may be finished before the engine is suspended; the request is then sent
    again.
    """
    (engine,) = psutil.Process(served.server._process.pid).children()

    def is_running() -> bool:
        return figure(served, "nbtrain_running_texts") > 0

    for _ in range(20):
        connection = connected(served, body)
        if body.get("stream"):
            connection.getresponse().read(50)
        with contextlib.suppress(AssertionError):
            wait_until(is_running, "no text is running", 5)
        engine.suspend()
        if all(is_running() for _ in range(3)):
            break
        engine.resume()
        connection.close()
    try:
        assert is_running()
        yield connection
    finally:
        connection.close()
        engine.resume()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed(served, stream):
    """When a client disconnects, its text is cancelled and the others continue."""
    made_before = figure(served, "nbtrain_new_tokens_total")
    with engine_held(served, {**FULL, "stream": stream}) as connection:
        before = figure(served, "nbtrain_dropped_clients_total")
        connection.close()
        wait_until(lambda: figure(served, "nbtrain_dropped_clients_total") == before + 1, "not noticed")
    body = {"prompt": "a", "max_tokens": 2}
    wait_until(lambda: send(served, "/v1/completions", body)[0] == 200, "no other text is answered")
    wait_until(lambda: figure(served, "nbtrain_running_texts") == 0, "texts are running")
    assert figure(served, "nbtrain_new_tokens_total") - made_before < 2400


def test_a_slow_reader_stalls_nobody(served, client, reference):
    """A client that does not read its stream does not delay other clients."""
    body = {"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True, "n": 2, "logprobs": 20}
    slow = connected(served, body)
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    answer = client.completions.create(model="talks", prompt="One day", **GREEDY)
    assert answer.choices[0].text == expected(reference, "One day")
    wait_until(lambda: figure(served, "nbtrain_running_texts") == 0, "texts are running")
    # With a buffer this small, the rest would take half a minute.
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    # It still gets all of its text, in fewer and larger events, or was dropped after three seconds.
    text = slow.getresponse().read().decode()
    slow.close()
    assert "[DONE]" in text or "finish_reason" in text


def test_half_a_request_is_none(served):
    """A client that never sends the rest of its body and a client that does not speak HTTP leave the server
    working.
    """
    host, port = served.server.url.removeprefix("http://").split(":")
    for words in (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/models HTTP/1.1\r\n" + b"X-Long: " + b"a" * 100_000,
    ):
        with socket.create_connection((host, int(port)), timeout=600) as raw:
            raw.sendall(words)
            raw.shutdown(socket.SHUT_WR)
            raw.recv(1000)
    assert send(served, "/health")[0] == 200


def test_the_page_and_the_figures(served):
    status, page = send(served, "/")
    assert status == 200 and "<title>Try a model</title>" in page
    status, text = send(served, "/metrics")
    assert status == 200
    for name in ("requests_total", "new_tokens_total", "first_text_seconds_bucket", "waiting_texts"):
        assert f"nbtrain_{name}" in text
