"""The command line: every verb has help, every error is a message and an exit code."""

import subprocess
import sys

import pytest

from nbtrain import cli


def verbs() -> list[str]:
    actions = [action for action in cli.parser()._actions if action.dest == "==SUPPRESS==" or action.choices]
    return list(actions[-1].choices)


@pytest.mark.parametrize("verb", verbs())
def test_each_verb_has_help(verb, capsys):
    """`nbtrain VERB --help` names the verb and ends with 0."""
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    assert end.value.code == 0
    assert f"nbtrain {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "gpt-tony"], 2, "ConfigError: gpt-tony: no such run YAML"),
        (["check", "gpt-tiny", "optimizer.warmup_tokens=1"], 2, "Nearest: lr_schedule.lr_warmup_tokens."),
        (["check", "gpt-tiny", "batch.micro_batch_size"], 2, "must be key=value"),
        (["status", "no-such-run"], 5, "is no run directory: it has no run.json"),
        (["notebook", "09_none"], 2, "no such notebook. nbtrain's own: 00_quickstart, 01_prepare_data"),
    ],
)
def test_errors_are_a_message_and_a_code(workspace, arguments, code, message, capsys):
    """No traceback; what went wrong and what would be right."""
    assert cli.main(arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_closed_pipe_is_no_error(workspace):
    """`nbtrain schema | head -1` ends quietly."""
    command = f"{sys.executable} -m nbtrain.cli schema"
    done = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, text=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""
