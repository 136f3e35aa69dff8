"""A fixture that runs the checks of a test file on ranks."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nbtrain.proof.fork_client import ForkServer


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, fork_server: "ForkServer", tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], str]:
    """Return a function from a number of ranks and a check to "", or to what failed.

    For each number, ranks are launched once, for all checks that the test file's CHECKS has for it.
    """
    from tests.parallel import ranks

    @functools.cache
    def outcomes(size: int) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("ranks")
        return ranks.launch(fork_server, request.module.__file__, size, folder, request.module.CHECKS[size])

    return lambda size, check: outcomes(size)[check]
