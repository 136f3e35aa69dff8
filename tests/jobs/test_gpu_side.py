"""Calls of the GPU side in a subprocess: answers, errors with their messages, crashes, and readers that stop
early.
"""

import sys

import pytest

from nbtrain.base.errors import CheckpointError, NbtrainError
from nbtrain.jobs import gpu_side
from nbtrain.jobs.gpu_side import stream

PROGRAM = """
import json, sys, time
request = json.load(sys.stdin)
print("a library says hello")
for number in range(request["count"]):
    print(json.dumps({"kind": "text", "text": str(number)}), flush=True)
if request["end"] == "error":
    print(json.dumps({"kind": "error", "error": "CheckpointError", "message": "there is none"}))
    sys.exit(4)
if request["end"] == "die":
    sys.exit("the last word")
if request["end"] == "hang":
    time.sleep(600)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Create a package in nbtrain whose __main__ is the program above, and return its name."""
    import nbtrain

    folder = tmp_path / "answering"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(PROGRAM)
    # The child must find it too: a .pth-like start file extends nbtrain's path there.
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import nbtrain; nbtrain.__path__.append({str(tmp_path)!r})\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{nbtrain.__path__[0]}/..")
    return "nbtrain.answering"


def test_answers_come_as_they_are_made(package):
    """JSON objects are yielded in order, as soon as they are written; other lines are ignored."""
    answers = list(stream(package, {"count": 3, "end": "well"}))
    assert answers == [{"kind": "text", "text": str(number)} for number in range(3)]


def test_an_error_comes_back_as_itself(package):
    """An error is raised with its class and message, without a traceback."""
    answers = stream(package, {"count": 1, "end": "error"})
    assert next(answers)["text"] == "0"
    with pytest.raises(CheckpointError, match=r"^there is none$"):
        next(answers)


def test_a_death_is_reported_with_its_last_output(package):
    """If the process dies without reporting an error, its last log lines are reported."""
    with pytest.raises(NbtrainError) as died:
        list(stream(package, {"count": 0, "end": "die"}))
    assert (
        str(died.value) == "python -m nbtrain.answering ended with code 1. Its last output:\n  the last word"
    )


def test_a_reader_that_goes_away_ends_the_process(package, monkeypatch):
    """When the iterator is closed, the process ends."""
    started = []
    popen = gpu_side.subprocess.Popen

    def remembered(*arguments, **more):
        started.append(popen(*arguments, **more))
        return started[0]

    monkeypatch.setattr(gpu_side.subprocess, "Popen", remembered)
    answers = stream(package, {"count": 1, "end": "hang"})
    next(answers)
    answers.close()
    assert started[0].returncode is not None


def test_a_package_that_is_not_there(workspace):
    """A package name that does not exist is reported as an error."""
    with pytest.raises(NbtrainError, match=r"python -m nbtrain.nothing ended with code 1") as died:
        list(stream("nbtrain.nothing", {}))
    assert "No module named nbtrain.nothing" in str(died.value)
    assert sys.executable in str(died.value)
