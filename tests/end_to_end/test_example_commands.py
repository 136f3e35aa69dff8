"""The commands in examples/megatron-gpt/README.md are valid; the soak runs them and checks their results.

The soak runs them in order in one workspace, with half of gpt-tiny's tokens. Commands that run until they are
interrupted are interrupted after their first output.
"""

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbtrain.base.run_directory.evaluation_files import newest_evaluations
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import parse
from nbtrain.config.load import load
from nbtrain.monitor.status.status_records import read_status
from tests.waiting import wait_until

README = Path(__file__).parents[2] / "examples" / "megatron-gpt" / "README.md"
WAY = {
    *(
        "prepare",
        "data",
        "check",
        "plan",
        "search",
        "twin",
        "submit",
        "status",
        "logs",
        "curves",
        "tensorboard",
    ),
    *("cancel", "resume", "wait", "checkpoint", "generate", "evaluate", "compare", "export", "serve"),
}
ENDLESS = ("logs -f", "tensorboard", "serve")
# On a busy machine, what normally takes seconds may take minutes.
LIMIT_SECONDS = 1800.0
RIGHT_ANSWERS = 0.9


def commands() -> list[list[str]]:
    """Return the words of each command in order; every fence on the page except YAML has commands."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert {language for language, _ in blocks} == {"sh", "yaml"}
    return [
        shlex.split(line, comments=True)
        for language, block in blocks
        if language == "sh"
        for line in block.splitlines()
        if line.strip()
    ]


def test_every_command_is_understood():
    """The parser accepts every command; its runs are known, and its overrides break no rule."""
    found = commands()
    assert len(found) > 25
    made: set[str] = set()
    for program, *words in found:
        assert program == "nbtrain"
        options = parse(words)
        runs = options.data if words[0] == "data" else getattr(options, "run", None) or options.runs
        overrides = getattr(options, "overrides", None) or []
        for run in [runs] if isinstance(runs, str) else runs:
            if overrides or run not in made:
                made.add(load(run, overrides).name)


def test_the_whole_way_is_there():
    """The page has a command for each step from text to a served model, also for Slurm and Kubernetes."""
    verbs = {words[1] for words in commands()}
    assert verbs >= WAY
    dry = [words for words in commands() if "--dry-run" in words]
    assert {word for words in dry for word in words if "kind" in word} == {
        "backend.kind=slurm",
        "backend.kind=kubernetes",
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Create a workspace with the examples, with half of gpt-tiny's tokens."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("NBTRAIN_QUEUE", str(tmp_path / "queue"))
    shutil.copytree(README.parent, tmp_path / "examples" / "megatron-gpt")
    path = tmp_path / "examples" / "megatron-gpt" / "training" / "gpt-tiny.yaml"
    text = path.read_text()
    for before, after in (
        ("max_bytes: 8_000_000", "max_bytes: 2_000_000"),
        ("train_tokens: 819_200", "train_tokens: 409_600"),
        ("eval_iters: 8", "eval_iters: 1"),
    ):
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return tmp_path


def said_of(words: list[str], folder: Path) -> str:
    """Run a command and return its output; a command of ENDLESS is interrupted after its first output."""
    command = [sys.executable, "-m", "nbtrain.cli", *words[1:]]
    if not " ".join(words[1:]).startswith(ENDLESS):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(LIMIT_SECONDS), shlex.join(words)
        said = os.read(process.stdout.fileno(), 1 << 16).decode()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=LIMIT_SECONDS)[0].decode()
        assert process.returncode in (0, 130), f"{shlex.join(words)}\n{said}{rest[-4000:]}"
        return said + rest


@pytest.mark.slow
@pytest.mark.soak
def test_every_command_does_what_it_says(place):
    """All commands run in order, and the model answers nine of ten held-out questions correctly."""
    said: dict[str, str] = {}
    for words in commands():
        line = shlex.join(words[1:])
        if line == "status gpt-tiny":
            wait_for_step(10)
        said[line] = said_of(words, place)
    [answer] = [text for line, text in said.items() if line.startswith("generate gpt-tiny-instructions")]
    assert "Its type is int." in answer
    held_out = newest_evaluations(RunDir.named("gpt-tiny-instructions"))["multiple-choice-held-out"]
    assert held_out.metrics["acc"].value >= RIGHT_ANSWERS
    for file in ("job.sh", "job.yaml", "exported/gpt-tiny-instructions/model.safetensors"):
        assert (place / file).is_file()
    assert (place / "exported" / "gpt-tiny-lora" / "adapter_model.safetensors").is_file()


def wait_for_step(step: int) -> None:
    """Wait until gpt-tiny has finished this many steps."""
    wait_until(
        lambda: (read_status(RunDir.named("gpt-tiny"), time.time()).step or 0) >= step,
        f"gpt-tiny has not made {step} steps",
        LIMIT_SECONDS,
        pause_seconds=1.0,
    )
