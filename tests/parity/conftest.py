"""A fixture that trains cases on forked ranks."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nbtrain.proof.fork_client import ForkServer
    from tests.parity.runner import Runner


@pytest.fixture(scope="session")
def runner(fork_server: "ForkServer", tmp_path_factory: pytest.TempPathFactory) -> "Runner":
    """Return a runner that trains cases in a temporary folder with a separate data directory."""
    from tests.parity.runner import Runner, make_datasets

    root = tmp_path_factory.mktemp("parity")
    make_datasets(root / "data")
    return Runner(fork_server, root, root / "data")
