"""Answers rated by a judge model: requests, parsed ratings, and failures."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from urllib3.util import Retry

import nbtrain as nb
from nbtrain.api.evaluate import _Engine
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.cli.__main__ import main
from nbtrain.evaluation.judge import Judge, JudgedQuestions
from nbtrain.serving.chat import AlpacaTemplate, ChatPrompt
from nbtrain.serving.resident import RESIDENT
from tests.evaluation import made
from tests.inference import saved

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write a line.", "Now shorter."]},
    {"question_id": 82, "category": "math", "turns": ["2 + 2?"], "reference": ["4"]},
    {"turns": ["Who?"]},
]
SECRET = "token-that-nobody-sees"


class Endpoint:
    """A judge behind HTTP with prepared replies; `asked` records the requests."""

    def __init__(self, says):
        self.says, self.asked, self.tokens = says, [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.asked.append(body)
                    outer.tokens.append(self.headers.get("Authorization"))
                    status, said = outer.says(len(outer.asked), body)
                answer = {"choices": [{"message": {"role": "assistant", "content": said}}]}
                content = json.dumps(answer if status == 200 else {"error": {"message": said}}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def endpoint(monkeypatch) -> Iterator:
    """Return a function that starts an Endpoint with these replies; retries do not wait."""
    opened = []
    monkeypatch.setattr(Retry, "sleep", lambda *_: None)

    def make(says):
        opened.append(Endpoint(says))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


class Parrot:
    """A model that answers with the number of messages it received and the newest message."""

    def chat(self, conversations, most_new_tokens):
        for number in reversed(range(len(conversations))):
            messages = conversations[number]
            yield number, f"{len(messages)} {messages[-1]['content']}"


@pytest.fixture
def asked(tmp_path):
    questions = JudgedQuestions(made.write_lines(tmp_path / "mt-bench.jsonl", QUESTIONS))
    questions.answer(Parrot())
    return questions


def by_words(number, body):
    shown = body["messages"][1]["content"]
    return 200, f"Fine [[1]]. Rating: [[{9 if 'shorter' in shown else 4 if 'Write' in shown else 7}]]"


def test_turns_follow_each_other_and_each_is_rated(asked, endpoint):
    """Each turn follows the turns before it and is rated; the last rating in a reply
    counts, and scores are means.
    """
    first = asked.questions[0]
    assert first.answers == ["1 Write a line.", "3 Now shorter."]
    there = endpoint(by_words)
    asked.judge(Judge(endpoint(lambda *_: (200, "[[2]]")).url, "another"))
    outcome = asked.judge(Judge(there.url + "/", "judge-7b"))
    assert [one.ratings for one in asked.questions] == [[4.0, 9.0], [7.0], [7.0]]
    assert outcome.metrics["score"].value == pytest.approx((6.5 + 7 + 7) / 3)
    assert outcome.metrics["score_turn_1"].value == 6.0 and outcome.metrics["score_turn_2"].value == 9.0
    assert outcome.groups["writing"] == {"examples": 1, "score": {"value": 6.5, "stderr": None}}
    assert outcome.counts == {"examples": 3, "unrated": 0}
    assert {body["model"] for body in there.asked} == {"judge-7b"} and there.tokens == [None] * 4
    texts = [body["messages"][1]["content"] for body in there.asked]
    [second_turn] = [text for text in texts if "shorter" in text]
    assert second_turn == (
        "[user]\nWrite a line.\n\n[assistant]\n1 Write a line.\n\n[user]\nNow shorter.\n\n"
        "[assistant]\n3 Now shorter."
    )
    [with_reference] = [body for body in there.asked if "reference answer" in body["messages"][1]["content"]]
    assert with_reference["messages"][1]["content"].endswith("[reference answer to the last question]\n4")
    assert "agrees with the reference answer" in with_reference["messages"][0]["content"]


def test_a_judge_that_is_busy_or_gives_no_rating_is_asked_again(asked, endpoint):
    """A judge that is busy or gives no rating is asked twice more; then the answer is recorded as unrated."""

    def says(number, body):
        if number <= 3:
            return (429, 503, 500)[number - 1], "busy"
        return 200, "[[8]]" if "2 + 2" in body["messages"][1]["content"] else "[[11]] Good"

    outcome = asked.judge(Judge(endpoint(says).url, "judge"))
    assert outcome.counts == {"examples": 3, "unrated": 3}
    assert outcome.metrics["score"].value == 8.0 and "score_turn_2" not in outcome.metrics


def test_a_judge_is_reached_through_the_proxy(asked, endpoint, monkeypatch):
    proxy = endpoint(by_words)
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    asked.judge(Judge("http://judge.example/v1", "judge-7b"))
    assert len(proxy.asked) == 4
    near = endpoint(by_words)
    asked.judge(Judge(near.url, "judge-7b"))
    assert (len(proxy.asked), len(near.asked)) == (4, 4)


def test_what_goes_wrong_is_said_without_the_token(asked, endpoint, monkeypatch):
    monkeypatch.setenv("NBTRAIN_JUDGE_TOKEN", SECRET)
    for says, words in (
        (
            lambda *_: (401, "wrong key."),
            "/v1/chat/completions: the judge returned HTTP status 401: wrong key. Check the token in "
            "$NBTRAIN_JUDGE_TOKEN.",
        ),
        (lambda *_: (404, "no such model"), "the judge returned HTTP status 404: no such model."),
        (lambda *_: (500, "down"), "the judge returned HTTP status 500: down."),
        (
            lambda *_: (200, "Good."),
            "rating in the form [[5]]. The first reply was: 'Good.'. Choose another judge_model.",
        ),
    ):
        there = endpoint(says)
        with pytest.raises(DataError) as error:
            asked.judge(Judge(there.url, "judge"))
        assert str(error.value).endswith(words) and SECRET not in str(error.value)
        assert set(there.tokens) == {f"Bearer {SECRET}"}
    monkeypatch.delenv("NBTRAIN_JUDGE_TOKEN")
    with pytest.raises(DataError, match=r"401: no\. Set \$NBTRAIN_JUDGE_TOKEN to the judge's API token\.$"):
        asked.judge(Judge(endpoint(lambda *_: (401, "no")).url, "judge"))
    gone = endpoint(lambda *_: (200, ""))
    gone.server.server_close()
    with pytest.raises(DataError, match=r"the judge cannot be reached \(\w+\)\. Check judge_url"):
        asked.judge(Judge(gone.url, "judge"))
    for url, model, said in (
        ("ftp://user:pw@x/v1", "m", "judge_url = 'ftp://***@x/v1' must begin with http:// or https://."),
        (
            "http://x/v1",
            "",
            "judge_model is empty. Set it to the name that the judge's server uses for the model.",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            Judge(url, model)
        assert str(refused.value) == said


def test_a_token_that_no_header_takes_is_not_shown(asked, endpoint, monkeypatch):
    """Spaces and line ends around a token, as in a Secret's file, are removed; an
    invalid token is not shown.
    """
    monkeypatch.setenv("NBTRAIN_JUDGE_TOKEN", f" {SECRET}\n")
    there = endpoint(by_words)
    asked.judge(Judge(there.url, "judge"))
    assert set(there.tokens) == {f"Bearer {SECRET}"}
    for held in (f"{SECRET}\nmore", f"{SECRET}\u20ac"):
        monkeypatch.setenv("NBTRAIN_JUDGE_TOKEN", held)
        with pytest.raises(ConfigError) as refused:
            Judge(there.url, "judge")
        said = "$NBTRAIN_JUDGE_TOKEN must be a single line of printable ASCII characters."
        assert str(refused.value) == said


def test_files_of_questions(tmp_path):
    """Each invalid line in a file of questions is reported."""
    for line, said in (
        ({"turns": []}, "turns has 0 entries, but must have 1 to 26."),
        ({"turns": "one"}, "turns must be a list of non-empty strings."),
        ({"question_id": 1}, "the field turns is missing; the object has the fields question_id."),
    ):
        path = made.write_lines(tmp_path / "bad.jsonl", [QUESTIONS[0], line])
        with pytest.raises(DataError) as error:
            JudgedQuestions(path)
        assert str(error.value) == f"{path}:2: {said}"


@pytest.mark.slow
def test_a_run_is_judged(workspace, endpoint, monkeypatch, capsys):
    """A run is judged from its checkpoint; no file contains the token, and a run
    without chat data is refused.
    """
    monkeypatch.setenv("MY_TOKEN", SECRET)
    chats = {"model.seq_length": 256, "data.sources": [{"kind": "chat", "path": "talk.jsonl"}]}
    run = saved.save_run("talks", chats)
    path = made.write_lines(workspace / "mt-bench.jsonl", QUESTIONS)
    there = endpoint(by_words)
    try:
        words = ["--judge-questions", str(path), "--judge-url", there.url, "--judge-model", "judge-7b"]
        assert main(["evaluate", "talks", *words, "--judge-token-env", "MY_TOKEN", "--json"]) == 0
        record = json.loads(capsys.readouterr().out)["judged-mt-bench"]
        assert record["metrics"]["score_turn_2"]["value"] == 9.0
        assert (
            record["task"] == f"judged by judge-7b at {there.url}" and there.tokens[0] == f"Bearer {SECRET}"
        )
        lines = (run.evaluation / "global_step7" / "judged-mt-bench.jsonl").read_text().splitlines()
        assert [len(json.loads(line)["answers"]) for line in lines] == [2, 1, 1]
        assert any(answer for line in lines for answer in json.loads(line)["answers"])
        kept = [one.read_bytes() for one in run.path.rglob("*") if one.is_file()]
        assert not any(SECRET.encode() in content for content in kept)
        # Answers are kept even if the judge cannot be reached.
        (run.evaluation / "global_step7" / "judged-mt-bench.jsonl").unlink()
        broken = endpoint(lambda *_: (404, "no such model"))
        with pytest.raises(DataError, match="no such model"):
            nb.evaluate("talks", judge_questions=path, judge_url=broken.url, judge_model="other")
        assert (run.evaluation / "global_step7" / "judged-mt-bench.jsonl").is_file()
        saved.save_run("silent")
        with pytest.raises(ConfigError, match="contain no conversations"):
            nb.evaluate("silent", judge_questions=path, judge_url=there.url, judge_model="judge-7b")
    finally:
        RESIDENT.close()


def test_a_long_conversation_gets_an_answer_of_full_length():
    """A long conversation is shortened at its beginning, so that an answer may have the full length."""
    asked: list[dict] = []

    def generate(requests):
        asked.extend(requests)
        return iter([(0, "Fine.</s>")])

    template = SimpleNamespace(prompt=lambda messages: ChatPrompt(["text " * 300], suffix="</s>"))
    engine = SimpleNamespace(_template=template, generate=generate)
    assert list(_Engine.chat(engine, [[{"role": "user", "content": "a"}]], 50)) == [(0, "Fine.")]
    assert (asked[0]["max_new_tokens"], asked[0]["slides"]) == (50, True)


def test_a_second_turn_for_a_run_of_single_instructions():
    """A second turn is refused for a run trained on single instructions."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    engine = SimpleNamespace(_template=AlpacaTemplate(None))
    with pytest.raises(ConfigError, match="send one message with the role user"):
        list(_Engine.chat(engine, [[*talk, talk[0]]], 5))
