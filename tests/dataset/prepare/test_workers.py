"""The number of processes that prepare large data: as configured, else the number of usable cores."""

import pytest

from nbtrain.base.hardware import cgroup
from nbtrain.dataset.prepare.workers import PARALLEL_FROM_BYTES, PARALLEL_FROM_BYTES_WHEN_SLOW, ChosenWorkers


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Simulate a CPU quota of four cores on a node of 128, which the CPU affinity does not show."""
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(128)))
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "size", "is_slow", "processes"),
    [
        (0, None, False, 4),
        (0, PARALLEL_FROM_BYTES, False, 4),
        (0, PARALLEL_FROM_BYTES - 1, False, None),
        (0, PARALLEL_FROM_BYTES_WHEN_SLOW, True, 4),
        (7, None, False, 7),
        (7, PARALLEL_FROM_BYTES, False, 7),
        (7, PARALLEL_FROM_BYTES - 1, False, None),
        (1, None, True, None),
    ],
)
def test_processes_that_prepare(container, make_config, asked, size, is_slow, processes):
    with ChosenWorkers(make_config(data={"num_prepare_workers": asked})) as chosen:
        workers = chosen.choose(size, is_slow, container)
    assert (workers and workers.args) == (processes and (processes,))
