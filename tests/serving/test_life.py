"""When a model is loaded and unloaded: kept for a notebook, or one at a time on a server, and how its process
ends.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import openai
import psutil
import pytest

import nbtrain as nb
from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.serving import models
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.proxy import models_entry
from nbtrain.serving.tokens import VARIABLE
from tests.base.process.test_signals import deafen
from tests.inference import saved
from tests.serving.conftest import CHAT
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TOKEN = "a token of the tests".replace(" ", "-")

KERNEL = """
import json, shutil, sys, time
import nbtrain as nb
from nbtrain.serving.resident import RESIDENT

STEP = 7

def made(prompt):
    text = nb.generate("talks", prompt, max_new_tokens=5, temperature=0)
    return [text.new_text, RESIDENT.engine._process.pid, RESIDENT.engine.ready["step"]]

first, second = made("One"), made("One")
run = nb.open_run("talks").directory
shutil.copytree(run.checkpoint(STEP), run.checkpoint(STEP + 1))
RESIDENT.idle_seconds = 0.1
newer, engine = made("One"), RESIDENT.engine
while RESIDENT.engine is not None:
    time.sleep(0.05)
after_idle = engine._process.poll()
RESIDENT.idle_seconds = 600
print(json.dumps([first, second, newer, after_idle, made("One")]), flush=True)
print("torch" in sys.modules, flush=True)
time.sleep(600)
"""


def test_a_notebook_keeps_its_model(workspace):
    """A notebook's model stays loaded until a newer checkpoint exists, it has been idle too long, or the
    notebook ends.
    """
    saved.save_run("talks")
    repository = Path(__file__).parents[2]
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True, cwd=repository
    )
    with kernel:
        try:
            assert kernel.stdout is not None
            first, second, newer, after_idle, last = json.loads(kernel.stdout.readline())
            assert first == second and first[2] == saved.STEP
            assert newer[0] == first[0] and newer[1] != first[1] and newer[2] == saved.STEP + 1
            assert after_idle == 0 and last[1] != newer[1]
            assert kernel.stdout.readline() == "False\n"
            assert psutil.pid_exists(last[1])
        finally:
            kernel.kill()
    # Its stdin has closed.
    wait_until(
        lambda: not psutil.pid_exists(last[1]) or psutil.Process(last[1]).status() == "zombie",
        "the engine's process is left",
    )


def test_errors_of_the_loading_process_are_named(workspace):
    """A missing checkpoint is reported before a process is started."""
    run = saved.save_run("talks")
    run.checkpoint_manifest(saved.STEP).unlink()
    for call in (lambda: nb.serve("talks"), lambda: nb.generate("talks", "a")):
        with pytest.raises(CheckpointError, match=r"contains no complete checkpoint\. Train the run first"):
            call()


def test_a_model_is_idle_from_the_end_of_its_last_answer(monkeypatch):
    """Idle time counts from the end of the last answer: with an answer that ends at 100 s, checks every 5 s
    and a limit of 10 s, the model is unloaded at 105 s.
    """
    now, unloaded = 0.0, []

    async def sleep(seconds):
        nonlocal now
        if unloaded:
            raise asyncio.CancelledError
        now += seconds
        dispatcher.is_busy = now < 100

    async def close():
        unloaded.append(now)

    dispatcher = SimpleNamespace(is_busy=True, close=close)
    monkeypatch.setattr(models, "asyncio", SimpleNamespace(sleep=sleep, Lock=asyncio.Lock))
    monkeypatch.setattr(models, "time", SimpleNamespace(monotonic=lambda: now))

    async def run():
        metrics = SimpleNamespace(loaded=SimpleNamespace(set=lambda value: None))
        several = models.Models(ServeOptions(idle_seconds=10), metrics, print)
        several.loaded = models.Served("talks", 7, dispatcher, None, {}, used=now)
        await several.unload_when_idle()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert unloaded == [105]


def test_the_models_are_the_runs_that_can_be_read(open_output, another_user):
    """A run that is being deleted is not a model, and neither is one that this user may not read."""
    for name in ("gpt-10", "gpt-9", ".gpt.00ff.deleted", "closed", "half"):
        run = RunDir(open_output / name)
        run.checkpoint(4).mkdir(parents=True)
        files.write_json(run.run_json, {"name": name})
        files.write_json(run.checkpoint_manifest(4), {"schema_version": 2, "files": {}})
        for path in (run.run_json, run.checkpoint_manifest(4)):
            path.chmod(0o644)
    (open_output / "closed").chmod(0o700)
    (open_output / "half" / "model").chmod(0o700)
    several = models.Models(ServeOptions(), SimpleNamespace(), print)
    with another_user():
        assert list(several.names().items()) == [("gpt-9", 4), ("gpt-10", 4)]


@pytest.fixture
def serving(workspace):
    """Start `nbtrain serve` on a free port; yield its process, the first lines of its output, and its
    address.
    """
    saved.save_run("talks", CHAT)
    command = [sys.executable, "-m", "nbtrain", "serve", "talks", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--grace-seconds", "0.5", "--max-batch", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, VARIABLE: TOKEN},
        # Started as a script does in the background, where it must still handle signals.
        preexec_fn=deafen,
    )
    with process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            yield process, lines, lines[2].split()[-1]
        finally:
            process.kill()


def streaming(url: str, **more):
    client = openai.OpenAI(base_url=url, api_key=TOKEN, max_retries=0)
    how = {"max_tokens": 250, "extra_body": {"ignore_eos": True}, **more}
    return client.completions.create(model="talks", prompt="a", stream=True, **how)


def test_sigterm_ends_streams_with_an_error(serving):
    """After the grace period, SIGTERM ends streams with an error event, so that no stream looks complete. A
    token from an environment variable is not printed.
    """
    process, lines, url = serving
    assert lines[0] == "talks, step 7, fp32 on CPU: 2 texts at once, each with at most 256 tokens\n"
    assert lines[1] == "chat template: from the run's data\n"
    assert lines[3] == f"api_key: the token from {VARIABLE}\n" and not any(TOKEN in line for line in lines)
    stream = streaming(url, n=64)  # two of which run at once, which is long enough on any machine
    iterator = iter(stream)
    next(iterator)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError, match="the server is shutting down"):
        for _ in range(10_000):
            next(iterator)
    assert process.wait(600) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), timeout=5)


def test_a_model_whose_process_dies_ends_the_server(serving):
    """If the model's process dies, the server exits. Running requests receive the reason, and so does
    whatever restarts the server.
    """
    process, _, url = serving
    iterator = iter(streaming(url, n=64))
    next(iterator)
    (engine,) = psutil.Process(process.pid).children()
    engine.kill()
    with pytest.raises(openai.APIError, match=r"the model's process has ended: .* was killed by signal 9"):
        for _ in range(10_000):
            next(iterator)
    assert process.wait(600) == 1
    assert "NbtrainError: python -m nbtrain.inference was killed by signal 9" in process.stderr.read()


def test_any_run_by_turns_on_a_socket(workspace, tmp_path):
    """JupyterLab's launcher tile starts a server for all runs on a Unix socket, without a token. One model is
    loaded at a time, and it is unloaded when idle.
    """
    import httpx

    for name in ("one", "two"):
        saved.save_run(name)
    path = tmp_path / "socket"
    entry = [word.format(unix_socket=path) for word in models_entry()["command"]]
    command = [*entry, "--idle-seconds", "2"]
    with subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == f"listening on {path}\n"
            assert path.stat().st_mode & 0o077 == 0
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://models", timeout=600) as client:
                assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["one", "two"]
                assert client.get("/health").json() == {"status": "ok", "loaded": False}
                for name in ("one", "two"):
                    body = {"model": name, "prompt": "a", "max_tokens": 3}
                    answer = client.post("/v1/completions", json=body).json()
                    assert answer["model"] == name and answer["usage"]["completion_tokens"] <= 3
                assert len(psutil.Process(process.pid).children()) <= 1
                missing = client.post("/v1/completions", json={"model": "none", "prompt": "a"})
                assert missing.status_code == 404 and "one, two" in missing.json()["error"]["message"]
                wait_until(lambda: not client.get("/health").json()["loaded"], "a model is loaded")
                wait_until(lambda: psutil.Process(process.pid).children() == [], "a process is left")
            process.terminate()
            assert process.wait(600) == 0 and not path.exists()
        finally:
            process.kill()
