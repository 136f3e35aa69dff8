"""The example on docs/import.md is run command by command."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from nbtrain.cli import __main__ as cli

PAGE = Path(__file__).parents[2] / "docs" / "import.md"


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def transcripts() -> list[list[tuple[str, list[str]]]]:
    """Return the commands of each console block, each with the lines of output that the page shows."""
    found = []
    for block in blocks("console"):
        commands = []
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        found.append(commands)
    return found


def test_the_example_prints_what_the_page_shows(workspace, capsys, monkeypatch):
    """The example prints every line on the page, and of a YAML that the page
    shortens, the shown lines in order.
    """
    monkeypatch.chdir(workspace)
    Path("train.sh").write_text(blocks("bash")[0])
    first, *later = transcripts()
    _run(first, capsys)
    # The page's own correction, in Python instead of sed, which is not available everywhere.
    (sed,) = re.findall(r"`sed -i '(.*?)' train\.sh`", PAGE.read_text(encoding="utf-8"))
    text = Path("train.sh").read_text()
    for old, new in re.findall(r"s/(.*?)/(.*?)/", sed):
        assert old in text
        text = text.replace(old, new)
    Path("train.sh").write_text(text)
    for commands in later:
        _run(commands, capsys)


def _run(commands: list[tuple[str, list[str]]], capsys: pytest.CaptureFixture) -> None:
    for command, shown in commands:
        words = shlex.split(command)
        assert words[0] == "nbtrain" and shown
        cli.main(words[1:])
        captured = capsys.readouterr()
        printed = (captured.out + captured.err).splitlines()
        if words[1] == "import" and "-o" not in words and captured.out:
            places = [printed.index(line) for line in shown]
            assert places == sorted(places), command
        else:
            assert printed == shown, command


def test_the_script_of_the_page_is_one_that_bash_reads():
    """`bash -n`, which does not run anything, accepts the page's script."""
    subprocess.run(["bash", "-n"], input=blocks("bash")[0], text=True, check=True)
