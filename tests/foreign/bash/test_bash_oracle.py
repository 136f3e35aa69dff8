"""Values that nbtrain decides are those that bash prints, for random programs that only set variables."""

import os
import shutil
import subprocess

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.bash.bash_script import read_script
from nbtrain.foreign.bash.patterns import MOST_CHARACTERS
from tests.foreign.bash.bash_programs import Programs
from tests.fuzzing import num_cases

RUN = "run() { printf '%s\\0' \"$@\"; }\n"
PROGRAMS = 60


def printed(program: str) -> list[str] | None:
    """Return the words with which bash calls `run`; None if the program is an error or does not end."""
    command = ["bash", "--norc", "-f", "-c", RUN + program]
    environment = {"PATH": os.environ["PATH"]}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return None if done.stderr else done.stdout.decode(errors="replace").split("\0")[:-1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_decided_values_are_those_that_bash_prints():
    """Every value of a random program is decided, and is the one that bash prints."""
    compared = 0
    for seed in range(num_cases(PROGRAMS)):
        program = Programs(seed).program()
        expected = printed(program)
        # Nested loops can make a value of any length, to which no pattern is applied.
        if expected is None or max(map(len, expected), default=0) > MOST_CHARACTERS:
            continue
        try:
            words = read_script(program, "a.sh").commands[-1].words[1:]
        except ConfigError as error:
            assert "expand to more than" in str(error), program
            continue
        assert not any(word.unknowns for word in words), program
        assert [word.text for word in words] == expected, program
        compared += 1
    assert compared > num_cases(PROGRAMS) * 0.7
