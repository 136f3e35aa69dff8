"""Makes the modules of this folder and tests/train importable, and gives tests a runner."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "train")]

if TYPE_CHECKING:
    from runner import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Runner"]:
    """Ranks forked from one process that is there for these tests; a folder and a data home of theirs."""
    from runner import Runner, make_datasets

    from nbtrain.jobs.fork_server import ForkServer

    root = tmp_path_factory.mktemp("parity")
    make_datasets(root / "data")
    with ForkServer() as server:
        yield Runner(server, root, root / "data")
