"""A real Slurm cluster of two nodes for all tests in this folder."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtrain.jobs.submission.submit import submit
from tests.clusters import slurm
from tests.jobs.conftest import FAKE_RANK


@pytest.fixture(scope="session")
def cluster() -> Iterator[slurm.SlurmCluster]:
    """Start one Slurm cluster for all tests in the folder."""
    if why := slurm.missing():
        if os.environ.get("NBTRAIN_REQUIRE_SLURM"):
            pytest.fail(why)
        pytest.skip(why)
    # Socket paths must be short, and pytest's folders are long.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    # No test here loses a node; on a busy machine a node may be late to answer.
    running = slurm.SlurmCluster(folder, slurmd_timeout_seconds=300).start()
    yield running
    running.stop()
    shutil.rmtree(folder)


@pytest.fixture
def on_slurm(
    cluster: slurm.SlurmCluster, fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return a function that submits the tiny run on two nodes, with fake ranks by default."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)

    def start(**more: Any) -> Any:
        backend = {"kind": "slurm", "slurm.time_limit_seconds": 600, **more.pop("backend", {})}
        nodes, command = more.pop("nodes", 2), more.pop("command", (FAKE_RANK,))
        config = fake(ranks=more.pop("ranks", 2 * nodes), backend=backend, **more)
        config = config.model_copy(update={"resources": config.resources.model_copy(update={"nodes": nodes})})
        return submit(config, command=command)

    return start
