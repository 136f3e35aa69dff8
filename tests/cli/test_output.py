"""Output is wrapped and coloured on a terminal only, and --json prints nothing but JSON."""

import io
import json
import re
import sys
import time
from types import SimpleNamespace

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.cli import __main__ as cli
from nbtrain.cli.output import colored, show_text
from nbtrain.cli.verbs import Parser

COLORS = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    """Provide a terminal of 60 columns with colours; pytest replaces stdout between fixture and test."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.fixture
def failed(workspace) -> RunDir:
    """Create a run whose job failed, with a long cause."""
    run = RunDir.named("gpt-x")
    job = run.job(new_job_id())
    job.make_folders()
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": "gpt-x"})
    cause = "rank 0 failed at step 7: OutOfMemoryError: 3 GiB more than there is on the device of this rank"
    JobRecord(job.job_id, "id", "gpt-x", "FAILED", time.time(), 1, cause).write(job.job_json)
    return run


def test_a_terminal_gets_tables_that_fit_and_coloured_states(failed, terminal, monkeypatch):
    """Tables fit into 60 columns, not counting escape codes, and states are coloured."""
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.main(["runs"]) == 0
    text = terminal.getvalue()
    assert COLORS.findall(text) == [("31", "FAILED")]
    assert max(map(len, COLORS.sub(r"\2", text).splitlines())) <= 60


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(failed, terminal, monkeypatch, name, value):
    """Colours can be turned off, while the terminal's width still applies."""
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv(name, value)
    assert cli.main(["runs"]) == 0
    text = terminal.getvalue()
    assert "\x1b" not in text and "FAILED" in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_pipe_gets_one_line_for_each_row_and_no_colour(failed, monkeypatch, capsys):
    """In a pipe, a table has one line per row and no colour."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["runs"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert "\x1b" not in row and row.endswith("on the device of this rank") and "CAUSE" in heads


def test_an_error_is_folded_with_its_name_in_red(terminal, workspace, monkeypatch):
    """An error is wrapped and its name is red, also for errors of the argument parser."""
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["plan", "14B"]) == 2
    text = terminal.getvalue()
    assert COLORS.findall(text) == [("31", "ConfigError")]
    assert max(map(len, COLORS.sub(r"\2", text).splitlines())) <= 60
    with pytest.raises(SystemExit):
        Parser(prog="nbtrain x").error("word " * 40)
    assert max(map(len, COLORS.sub(r"\2", terminal.getvalue()).splitlines())) <= 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt-a RUNNING | step 1", {"RUNNING": "34"}),
        ("RUNNING -> SUCCEEDED: all steps", {"RUNNING": "34", "SUCCEEDED": "32"}),
        ("gpt-a  LOST  1/2\ngpt-b  QUEUED  -", {"LOST": "31", "QUEUED": "33"}),
        ("gpt-a SUCCEEDED: job 2026 on backend local", {"SUCCEEDED": "32"}),
        ("  worker 0  n1  Failed  0\n    rank 0  Succeeded (finished)  1", {"Failed": "31"}),
        ("fits: yes, 97% headroom", {"fits: yes": "32"}),
        ("device memory  1 GiB (A100): does not fit", {"does not fit": "31"}),
        ("  - warning, costs 3 d: set it\nnote: a\nerror: b", {"warning": "33", "note": "34", "error": "31"}),
        (
            "ok    Python  3.11\nwarning  torch  old\nerror  deepspeed  none",
            {"ok": "32", "warning": "33", "error": "31"},
        ),
        (
            "6  27 MiB  1 rank  complete\n8  1 MiB  incomplete: a is cut",
            {"complete": "32", "incomplete": "31"},
        ),
        ("JobError: output/a: no", {"JobError": "31"}),
        ("Failed to note that an error is valid; the run was complete. A warning, too", {}),
        ("the queue is RUNNINGS and my-FAILED-run", {"FAILED": "31"}),
    ],
)
def test_only_states_verdicts_and_levels_are_coloured(text, words):
    """States, verdicts and levels are coloured, but the same words within a sentence are not."""
    assert {word: color for color, word in COLORS.findall(colored(text))} == words
    assert COLORS.sub(r"\2", colored(text)) == text


def test_a_models_text_does_not_control_the_terminal(terminal, monkeypatch, capsys):
    """Escape codes in a model's text are neutralized on a terminal but kept in a pipe."""
    show_text("a\x1b[2Jb\n")
    assert capsys.readouterr().out == "a\x1b[2Jb\n"
    monkeypatch.setattr(sys, "stdout", terminal)
    show_text("a\x1b[2Jb\n")
    assert terminal.getvalue() == "a\\x1b[2Jb\n"


def json_of(capsys, words: list[str], code: int = 0) -> tuple[dict, str]:
    """Run a command; return its stdout parsed as JSON, and its stderr."""
    assert cli.main(words) == code
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_json_of_doctor_and_largest(workspace, capsys):
    """The JSON of doctor has levels, and the JSON of largest has the layouts of its answers."""
    report, _ = json_of(capsys, ["doctor", "--json"])
    assert report["ready"] is True and report["findings"][0]["rule"] == "Python"
    assert {finding["level"] for finding in report["findings"]} <= {"ok", "note", "warning", "error"}
    found, _ = json_of(capsys, ["largest", "125M", "--gpus", "2", "--gpu-type", "T4", "--json"])
    assert found["gpu_type"] == "T4" and found["nodes"] * found["gpus_per_node"] == 2
    model, following = found["largest_model"], found["next_model"]
    assert model["parameters"] < following["parameters"] and "layout" not in following
    assert model["layout"]["settings"]["batch.micro_batch_size"] >= 1 and model["layout"]["device_bytes"] > 0
    assert [way["name"] for way in found["ways"]] == ["pure TP x PP", "pure ZeRO 3", "fused"]
    assert found["longest_sequence"] == max(way["longest_sequence"] or 0 for way in found["ways"])


def test_json_of_submit_resume_and_wait_is_the_run(failed, monkeypatch, capsys):
    """submit, resume and wait print the same JSON as `runs --json`; their messages go to stderr."""
    run = SimpleNamespace(
        name="gpt-x", directory=failed, job=failed.newest_job(), state="FAILED", config=None
    )
    lines = []

    def started(*_, **__):
        print("gpt-x: a warning")
        return run

    def wait(say):
        say("gpt-x RUNNING")
        lines.append("waited")

    run.wait, run.resume = wait, started
    monkeypatch.setattr("nbtrain.api.verbs.load", lambda *_, **__: None)
    monkeypatch.setattr("nbtrain.api.verbs.submit", started)
    monkeypatch.setattr("nbtrain.api.run.open_run", lambda _: run)
    monkeypatch.setattr("nbtrain.config.load.changes.typed_changes", lambda *_: [])
    for words, code, said in (
        (["submit", "gpt-x", "--json"], 0, "gpt-x: a warning\n"),
        (["submit", "gpt-x", "--json", "--wait"], 7, "gpt-x: a warning\ngpt-x RUNNING\n"),
        (["resume", "gpt-x", "--json"], 0, "gpt-x: a warning\n"),
        (["wait", "gpt-x", "--json"], 7, "gpt-x RUNNING\n"),
    ):
        found, error = json_of(capsys, words, code)
        assert (found["name"], found["state"], found["job_id"]) == ("gpt-x", "FAILED", run.job.job_id)
        assert error == said
    monkeypatch.setattr("nbtrain.config.load.changes.typed_changes", lambda *_: ["a"])
    found, error = json_of(capsys, ["submit", "gpt-x", "--json"], 6)
    assert found["name"] == "gpt-x" and "keeps its settings; nothing was submitted" in error
    assert cli.main(["submit", "gpt-x", "--json", "--dry-run", "a.sh"]) == 2
