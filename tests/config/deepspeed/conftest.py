"""A fixture that runs code of the installed DeepSpeed in a separate process."""

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from nbtrain.proof.fork_client import ForkServer


@pytest.fixture(scope="session")
def ask_deepspeed(
    fork_server: "ForkServer", tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[str]]:
    """Return a function that runs Python code with the text `given` as its input, and returns the lines that
    it printed.

    The notebook side's tests load neither torch nor DeepSpeed: the code runs in a process that is forked from
    one which has loaded them.
    """

    def ask(code: str, given: str = "") -> list[str]:
        log = tmp_path_factory.mktemp("deepspeed") / "{rank}.log"
        ended = fork_server.run(
            1, "tests.config.deepspeed.conftest:run_code", [code, given], log=log, sys_path=[REPOSITORY]
        )
        assert ended.succeeded, ended.last_output()
        return ended.launch.log_of(0).read_text().splitlines()

    return ask


def run_code(code: str, given: str) -> None:
    """Run the code in a forked process."""
    sys.stdin = io.StringIO(given)
    exec(code, {})
