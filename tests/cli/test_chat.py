"""`nbtrain chat`, and the prompts of `nbtrain generate`, with an engine that answers with canned text."""

import contextlib
import io
from types import SimpleNamespace

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, to_yaml
from nbtrain.config.sections.sources import ChatSource
from nbtrain.serving.resident import RESIDENT


class Echo:
    """An engine that answers each request with its number and the count of questions in the prompt."""

    ready = {"step": 7, "eod": "<|endoftext|>"}  # noqa: RUF012

    def __init__(self) -> None:
        self.requests: list[dict] = []

    def stream(self, request):
        self.requests.append(request)
        prompt = "".join(request["prompt"])
        yield 0, {"accepted": True}
        yield 0, {"text": f"{len(self.requests)}: ", "index": 0}
        yield 0, {"text": f"{prompt.count('user')} questions", "index": 0, "finish_reason": "stop"}
        yield 0, {"end": True}


@pytest.fixture
def engine(workspace, monkeypatch) -> Echo:
    """Replace the engine of two runs: `talks` was trained on conversations, `plain` was not."""
    for name, changes in (("talks", {"data.sources": [{"kind": "chat", "path": "a.jsonl"}]}), ("plain", {})):
        run = RunDir.named(name)
        run.path.mkdir(parents=True)
        files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": name})
        files.write_text(run.config_yaml, to_yaml(load("gpt-tiny", {"name": name, **changes})))
    echo = Echo()
    monkeypatch.setattr(RESIDENT, "used", lambda loading: contextlib.nullcontext(echo))
    return echo


def chat(monkeypatch, text: str, *words: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return cli.main(["chat", *words])


def test_an_answer_follows_the_messages_before_it_until_they_are_forgotten(engine, monkeypatch, capsys):
    """Chat sends all messages so far in the data's template, with its stop texts; /new forgets them."""
    assert chat(monkeypatch, "One\n\nTwo\n /new\nThree\n", "talks", "--seed", "5", "--stop", "X") == 0
    shown = capsys.readouterr()
    assert shown.out == "1: 1 questions\n2: 2 questions\n3: 1 questions\n"
    assert "talks, step 7, seed 5." in shown.err and "conversations" not in shown.err
    first, second, _ = (request["prompt"] for request in engine.requests)
    template = ChatSource(kind="chat", path="a.jsonl").template
    asked = template.replace("{role}", "user").replace("{content}", "One")
    assert "".join(first).startswith(asked) and "1: 1 questions" in "".join(second)
    assert all(request["seed"] == 5 and "X" in request["stop"] for request in engine.requests)
    assert all(request["slides"] and len(request["stop"]) > 1 for request in engine.requests)


def test_a_run_that_has_seen_no_conversations_continues_each_text(engine, monkeypatch, capsys):
    assert chat(monkeypatch, "One\nTwo\n", "plain") == 0
    assert [request["prompt"] for request in engine.requests] == [["One"], ["Two"]]
    assert "plain was not trained on conversations: it continues each text" in capsys.readouterr().err
    assert chat(monkeypatch, "", "plain", "--temperature", "-1") == 2
    assert chat(monkeypatch, "", "talks", "--chat-template", "none.jinja") == 2
    assert "--chat-template none.jinja: the file cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "prompts"),
    [
        (["mine", "One", "Two"], ["One", "Two"]),
        (["mine", "-n", "20", "One"], ["One"]),
        (["mine", "-p", "x", "One"], ["x", "One"]),
        (["mine", "--", "- an item"], ["- an item"]),
        (["mine", "-"], ["a", "b"]),
        (["mine", "--prompts", "-", "c"], ["c", "a", "b"]),
        (["mine"], None),
    ],
)
def test_prompts_follow_the_run(words, prompts, monkeypatch, capsys):
    """Prompts can come before or after options, or from stdin; without any, the usage is shown."""
    given = []

    def generate(run, prompt, stream=False, **how):
        given.extend([prompt] if isinstance(prompt, str) else prompt)
        return iter(["!"]) if stream else [SimpleNamespace() for _ in prompt]

    monkeypatch.setattr("nbtrain.api.verbs.generate", generate)
    monkeypatch.setattr("nbtrain.cli.serve._prompts_of", lambda file: ["a", "b"] if file == "-" else [])
    assert cli.main(["generate", *words]) == (0 if prompts else 2)
    assert given == (prompts or [])
    if prompts is None:
        assert "no prompt: write it after the run, as in `nbtrain generate mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--seed", "9"], "seed 9"), (["--temperature", "0"], ""), (["--num-beams", "2"], "")],
)
def test_generate_names_its_seed(options, says, monkeypatch, capsys):
    """A sampling generate prints its seed on stderr, so that output redirected to a file is only the text."""
    monkeypatch.setattr(
        "nbtrain.api.verbs.generate", lambda *_, stream=False, **__: iter(["!"]) if stream else ["a!"]
    )
    assert cli.main(["generate", "mine", "a", *options]) == 0
    shown = capsys.readouterr()
    assert says in shown.err if says else shown.err == ""
    assert "seed" not in shown.out
