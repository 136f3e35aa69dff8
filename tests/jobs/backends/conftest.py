"""A pair of hosts."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import hosts
from tests.conftest import skip_or_fail


@pytest.fixture(scope="module")
def pair() -> Iterator[hosts.HostPair]:
    """Start a pair of hosts for all tests of a file."""
    if why := hosts.missing():
        skip_or_fail("NBTRAIN_REQUIRE_HOSTS", why)
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    running = hosts.HostPair(folder)
    try:
        yield running.start()
    finally:
        running.stop()
        shutil.rmtree(folder)
