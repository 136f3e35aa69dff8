"""`nbtrain chat` gives the same answers to a conversation as a server."""

import io

import openai
import pytest

from nbtrain.cli import __main__ as cli
from nbtrain.config.generation import Generation
from nbtrain.serving.conversation import Conversation
from nbtrain.serving.engine_process import Loading
from nbtrain.serving.resident import RESIDENT
from tests.inference import saved

pytestmark = [pytest.mark.slow, pytest.mark.soak]

GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def in_workspace(served, monkeypatch):
    """Use the workspace of the served run, and unload this process's model at the end."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(served.folder))
    monkeypatch.setenv("NBTRAIN_QUEUE", str(served.folder / "queue"))
    yield served
    RESIDENT.close()


def test_each_answer_follows_all_messages_before_it(in_workspace):
    """Each answer is based on all earlier messages, as on a server. An answer that is interrupted keeps the
    text so far.
    """
    server, run = in_workspace.server, in_workspace.run
    client = openai.OpenAI(base_url=server.base_url, api_key=server.token)
    generation = Generation(temperature=0, max_new_tokens=8)
    messages: list[dict[str, str]] = []
    with Conversation(Loading(str(run.path), threads=1), generation) as conversation:
        assert (conversation.step, conversation.has_template, conversation.remembers) == (7, True, True)
        for question in ("One", "And another one"):
            answer = "".join(conversation.answer(question))
            messages.append({"role": "user", "content": question})
            same = client.chat.completions.create(model="talks", messages=messages, **GREEDY)
            assert answer == same.choices[0].message.content
            messages.append({"role": "assistant", "content": answer})
        assert conversation.messages == messages
        pieces = conversation.answer("Stop")
        first = next(pieces)
        pieces.close()
        assert conversation.messages[-1] == {"role": "assistant", "content": first}


def chat(monkeypatch, capsys, text: str, *words: str) -> tuple[str, str]:
    """Run `nbtrain chat` with messages from a pipe and return (answers, stderr)."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert cli.main(["chat", *words, "-n", "8", "--temperature", "0"]) == 0
    shown = capsys.readouterr()
    return shown.out, " ".join(shown.err.split())


def test_messages_from_a_pipe(in_workspace, monkeypatch, capsys):
    """Each line of a pipe is a message, and /new starts a new conversation. For a run without conversations,
    chat prints a note and continues each text.
    """
    one, said = chat(monkeypatch, capsys, "One\n", "talks")
    assert "talks, step 7, seed 1234." in said and "was not trained on conversations" not in said
    answers, _ = chat(monkeypatch, capsys, "One\nTwo\n\n/new\nOne\n", "talks")
    assert answers.startswith(one) and answers.endswith(one) and len(answers) > 2 * len(one)
    saved.save_run("plain")
    answers, said = chat(monkeypatch, capsys, "One\nOne\n", "plain")
    assert "plain was not trained on conversations" in said
    assert cli.main(["generate", "plain", "One", "-n", "8", "--temperature", "0"]) == 0
    shown = capsys.readouterr()
    assert answers == 2 * shown.out.removeprefix("One") and "seed" not in shown.err
    assert cli.main(["generate", "plain", "One", "-n", "2", "--seed", "5"]) == 0
    assert "seed 5" in capsys.readouterr().err
