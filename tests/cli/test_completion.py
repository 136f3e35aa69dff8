"""Completion: the words that argcomplete offers, their speed, and TAB in a real bash."""

import functools
import io
import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import argcomplete
import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.cli import __main__ as cli
from nbtrain.cli import completers, completion
from nbtrain.config.names.keys import field_keys
from nbtrain.config.schema import RunConfig

DEADLINE_SECONDS = 120


@pytest.fixture
def run(workspace) -> RunDir:
    """Create a run with two checkpoints and a job."""
    run = RunDir.named("gpt-mine")
    run.job(new_job_id()).make_folders()
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": "gpt-mine"})
    for step in (10, 200):
        run.checkpoint(step).mkdir(parents=True)
    return run


class Answered(BaseException):
    """Raised where argcomplete would exit the process."""


@pytest.fixture
def complete(monkeypatch):
    """Return a function complete(line) that returns the words offered to the shell at the end of the line."""

    def end(code: int) -> None:
        raise Answered

    def complete(line: str) -> list[str]:
        answer = io.StringIO()
        finder = argcomplete.CompletionFinder()
        # It would take a descriptor that pytest may have.
        finder._init_debug_stream = lambda: None
        how = {"exit_method": end, "output_stream": answer}
        monkeypatch.setattr(argcomplete, "autocomplete", functools.partial(finder, **how))
        for name, value in {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Answered):
            cli.main()
        return [word.strip() for word in answer.getvalue().split("\013") if word.strip()]

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nbtrain su", ["submit"]),
        ("nbtrain --ver", ["--version"]),
        ("nbtrain submit --dry", ["--dry-run"]),
        ("nbtrain data ver", ["verify"]),
        ("nbtrain status gpt-m", ["gpt-mine"]),
        ("nbtrain stop gpt-m", ["gpt-mine"]),
        ("nbtrain compare gpt-mine gpt-m", ["gpt-mine"]),
        ("nbtrain plan 13B", ["13B"]),
        ("nbtrain train gpt-tiny-i", ["gpt-tiny-instructions"]),
        ("nbtrain export gpt-mine --step 2", ["200"]),
        ("nbtrain checkpoint verify gpt-mine --step ", ["10", "200"]),
        ("nbtrain submit gpt-tiny batch.max_", ["batch.max_steps="]),
        (
            "nbtrain submit gpt-tiny precision.dtype=",
            [f"precision.dtype={name}" for name in ("fp32", "bf16", "fp16")],
        ),
        ("nbtrain resume gpt-mine data.cleaning.drop_di", []),
        ("nbtrain runs --state fa", ["failed"]),
        ("nbtrain search 13B --gpu-type A100-8", ["A100-80GB"]),
        ("nbtrain generate gpt-mine --dtype b", ["bf16"]),
        ("nbtrain export gpt-mine --to g", ["gguf"]),
        ("nbtrain notebook 03", ["03_launch"]),
        ("nbtrain completion z", ["zsh"]),
    ],
)
def test_what_is_completed(run, complete, line, words):
    """Commands, options, runs, examples, presets, checkpoints, keys, values and choices are completed."""
    assert complete(line) == words


def test_words_that_are_made_by_folders(run, workspace, complete, monkeypatch):
    """Jobs, datasets and run YAMLs in folders are completed; other files are left to the shell."""
    monkeypatch.chdir(workspace)
    assert complete("nbtrain logs gpt-mine --job 2") == run.job_ids()
    (workspace / "data" / "dataset" / "books").mkdir(parents=True)
    assert complete("nbtrain data verify bo") == ["books"]
    (workspace / "mine").mkdir()
    (workspace / "mine" / "a.yaml").touch()
    (workspace / "mine" / "a.txt").touch()
    assert complete("nbtrain check min") == ["mine/"]
    assert complete("nbtrain check mine/a") == ["mine/a.yaml"]
    assert complete("nbtrain generate gpt-mine --prompts mine/") == []


def test_every_key_of_a_run_is_completed():
    """Every key of the schema is completed, in the schema's order, without loading the schema."""
    known = {key for key in field_keys(RunConfig) if "." in key or key != "schema_version"}
    offered = completers.settings()
    sections = {key for key in known if any(other.startswith(f"{key}.") for other in known)}
    assert set(offered) == known - sections
    assert offered["precision.dtype"] == ("fp32", "bf16", "fp16")
    assert offered["backend.share_devices"] == ("true", "false")


def test_the_verb_names_the_line_to_add(capsys, monkeypatch):
    """`nbtrain completion` prints the line to add for the user's shell, or for bash
    if the shell is unknown.
    """
    for shell, file in (
        ("/bin/zsh", "~/.zshrc"),
        ("/usr/bin/fish", "config.fish"),
        ("/bin/ksh", "~/.bashrc"),
    ):
        monkeypatch.setenv("SHELL", shell)
        assert cli.main(["completion"]) == 0
        assert file in capsys.readouterr().out
    assert cli.main(["completion", "fish"]) == 0
    assert "complete --command nbtrain" in capsys.readouterr().out


class Bash:
    """An interactive bash on a pseudo-terminal."""

    def __init__(self, folder: Path, **variables: str):
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PS1": "$ ", "INPUTRC": "/dev/null", **variables}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-i"],
            **{name: slave for name in ("stdin", "stdout", "stderr")},
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._shown = ""

    def type(self, keys: str) -> None:
        self._shown = ""
        os.write(self._master, keys.encode())

    def shows(self, text: str) -> bool:
        """Wait until a text appears after the last typed keys."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self._shown and (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._shown += os.read(self._master, 4096).decode(errors="replace")
        return text in self._shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.mark.slow
def test_tab_in_bash(run, tmp_path):
    """In bash, the line that `nbtrain completion` prints completes a command, a run, a key and its value."""
    program = tmp_path / "nbtrain"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nbtrain "$@"\n')
    program.chmod(0o755)
    bash = Bash(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    try:
        bash.type(f"{completion.SHELLS['bash'][1]}; echo in''stalled\n")
        assert bash.shows("installed")
        for keys, shown in (
            ("nbtrain stat\t", "nbtrain status "),
            ("gpt-m\t", "gpt-mine "),
            ("\x15nbtrain submit gpt-mine precision.dty\t", "precision.dtype="),
            ("b\t", "bf16 "),
        ):
            bash.type(keys)
            assert bash.shows(shown), (keys, bash._shown)
    finally:
        bash.close()


@pytest.mark.slow
@pytest.mark.parametrize("line", ["", "nbtrain submit gpt-mine batch.max", "nbtrain logs gpt-m"])
def test_completion_and_help_load_little(run, line):
    """Completion and `nbtrain help` load neither the schema nor NumPy, because they must be fast."""
    code = (
        "import os, sys; end = os._exit\n"
        "def say(code=0): print(*sys.modules, file=sys.stderr, flush=True); end(0)\n"
        "os._exit = say; sys.argv = ['nbtrain', 'help']\n"
        "from nbtrain.cli import main; main(); say()"
    )
    typed = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))} if line else {}
    typed["_ARGCOMPLETE_STDOUT_FILENAME"] = os.devnull
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **typed}, capture_output=True)
    loaded = set(done.stderr.decode().split())
    assert "nbtrain.cli.verb_table" in loaded, done.stderr
    heavy = {"pydantic", "yaml", "numpy", "torch", "nbtrain.config.schema", "nbtrain.api.verbs"}
    records = {"nbtrain.base.run_directory.records", "dataclasses"} if not line else set()
    assert loaded & (heavy | records) == set()
