"""The compute rate of a core, which is measured once per machine and stored in the data directory."""

import json
import subprocess
import time

import pytest

from nbtrain.planner.calibration import calibration
from nbtrain.planner.calibration.calibration import matmul_flops_per_core, measure_core


@pytest.fixture(autouse=True)
def _forgotten():
    """Clear all caches, so that each test starts like a new process."""
    calibration._rate_of_core.cache_clear()
    yield
    calibration._rate_of_core.cache_clear()


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by an implausible rate, and record each call."""
    made = []
    monkeypatch.setattr(calibration, "_core_measured_apart", lambda: made.append(1) or 123e9)
    return made


def test_a_measurement_is_short_and_plausible():
    """The measurement is short, and its rate is plausible: between 1 GFLOP/s and 10 TFLOP/s."""
    start = time.process_time()
    assert 1e9 < measure_core() < 1e13
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_it_is_measured_with_one_thread(workspace, monkeypatch):
    """The rate is measured with one thread in a separate process, whatever OMP_NUM_THREADS is in this
    process.

    With several threads, threads that wait for each other would make the core look slow.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    environments, run = [], subprocess.run

    def watched(*arguments, **options):
        environments.append(options["env"])
        return run(*arguments, **options)

    monkeypatch.setattr(calibration.subprocess, "run", watched)
    rate = matmul_flops_per_core()
    assert rate is not None
    assert 1e9 < rate < 1e13
    assert [(one["OMP_NUM_THREADS"], one["OPENBLAS_NUM_THREADS"]) for one in environments] == [("1", "1")]


@pytest.mark.parametrize(
    "end",
    [
        OSError("no memory"),
        subprocess.TimeoutExpired("python", 20),
        subprocess.CalledProcessError(1, "python"),
        subprocess.CompletedProcess("python", 0, stdout=""),
        subprocess.CompletedProcess("python", 0, stdout="fast"),
    ],
)
def test_what_cannot_be_measured_is_not_known(workspace, monkeypatch, end):
    """If the measurement fails, the rate is unknown, nothing is stored, and plans still work."""

    def run(*arguments, **options):
        if isinstance(end, Exception):
            raise end
        return end

    (workspace / "data").mkdir()
    monkeypatch.setattr(calibration.subprocess, "run", run)
    assert matmul_flops_per_core() is None
    assert list((workspace / "data").iterdir()) == []


def test_measured_once_for_a_machine(workspace, measured, monkeypatch):
    """The rate is measured once per process and once per data directory; another CPU gets its own entry."""
    home = workspace / "data"
    home.mkdir()
    assert matmul_flops_per_core() == matmul_flops_per_core() == 123e9
    assert len(measured) == 1
    calibration._rate_of_core.cache_clear()
    assert matmul_flops_per_core() == 123e9
    assert len(measured) == 1
    monkeypatch.setattr(calibration, "cpu_model", lambda: ("Another CPU", frozenset()))
    matmul_flops_per_core()
    assert len(measured) == 2
    stored = json.loads((home / "cpu_rate.json").read_text())
    assert list(stored.values()) == [123_000_000_000] * 2
    assert list(stored)[1].startswith("Another CPU, ")


def test_no_data_home_is_made(workspace, measured):
    """A plan does not create the data directory; without one, only the process remembers the rate."""
    matmul_flops_per_core()
    matmul_flops_per_core()
    assert len(measured) == 1
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", "5"])
def test_a_broken_file_is_written_anew(workspace, measured, content):
    path = workspace / "data" / "cpu_rate.json"
    path.parent.mkdir()
    path.write_text(content)
    assert matmul_flops_per_core() == 123e9
    assert list(json.loads(path.read_text()).values()) == [123_000_000_000]


def test_a_figure_that_cannot_be_is_measured_anew(workspace, measured):
    path = workspace / "data" / "cpu_rate.json"
    path.parent.mkdir()
    path.write_text(json.dumps({calibration._core(): 0}))
    assert matmul_flops_per_core() == 123e9


def test_a_data_home_that_may_only_be_read(workspace, measured, monkeypatch):
    """With a read-only data directory, the rate is the same."""

    def refuse(path, value):
        raise PermissionError(13, "Permission denied")

    (workspace / "data").mkdir()
    monkeypatch.setattr(calibration.files, "write_json", refuse)
    assert matmul_flops_per_core() == 123e9
