"""Parsing the output of `dcgmi dmon`, with a stand-in for the program."""

import contextlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nbtrain.base.hardware import dcgm, nvml
from nbtrain.base.hardware.nvml import GpuUse
from nbtrain.jobs.node.sampler import NodeMeter
from tests.waiting import wait_until

HEAD = "#Entity   TENSO\nID\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that installs a shell script as dcgmi; the script writes its pid and arguments to
    `said`.
    """

    def make(script: str) -> Path:
        said, path = tmp_path / "said", tmp_path / "dcgmi"
        path.write_text(f'#!/bin/sh\necho "$$ $@" >{shlex.quote(str(said))}\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return said

    return make


def wait_for_end(said: Path) -> None:
    """Wait until the program has ended; on a slow machine it may be killed before it writes anything."""
    words = said.read_text().split() if said.exists() else []

    def ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(int(words[0])).status() == psutil.STATUS_ZOMBIE
        return True

    if words:
        wait_until(ended, "the program runs")


def test_the_newest_value_of_each_gpu_counts_once(program: Callable[[str], Path], tmp_path: Path) -> None:
    """Each GPU's newest value is returned once; N/A, headers and values above 1 are skipped.

    A line that arrives in two pieces is joined.
    """
    go_on = tmp_path / "go on"
    said = program(
        f"printf '{HEAD}GPU 1     N/A\\nGPU 0     0.250\\nGPU 1     1.5\\nGPU 3     0.5'\n"
        f"while [ ! -e {shlex.quote(str(go_on))} ]; do sleep 0.02; done\n"
        "printf '00\\nGPU 0     0.300\\nGPU 0     0.400\\n'\nexec sleep 600"
    )
    activity = dcgm.TensorActivity([0, 1, 3], first_seconds=600)
    assert activity.supported
    assert said.read_text().split()[1:] == ["dmon", "-e", "1004", "-d", "1000", "-i", "0,1,3"]
    assert activity.sample() == {0: 0.25}
    assert activity.sample() == {}
    go_on.touch()
    found: dict[int, float] = {}

    def newest() -> bool:
        found.update(activity.sample())
        return found == {0: 0.4, 3: 0.5}

    wait_until(newest, lambda: str(found))
    activity.close()
    wait_for_end(said)
    assert activity.sample() == {}


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Error: unable to establish a connection to the specified host: localhost' >&2; exit 255",
        f"printf '{HEAD}GPU 0     N/A\\n'; exec sleep 600",
    ],
)
def test_without_engine_or_rights_there_is_no_figure(program: Callable[[str], Path], script: str) -> None:
    """No value is read without the DCGM service or the permission to read it, and dcgmi is stopped."""
    said = program(script)
    activity = dcgm.TensorActivity([0], first_seconds=0.5)
    assert not activity.supported and activity.sample() == {}
    wait_for_end(said)


def test_without_the_program_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not dcgm.TensorActivity([0]).supported


def test_a_node_asks_it_for_gpus_that_the_driver_does_not_count(
    program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """dcgmi supplies the activity of GPUs whose driver has no counters, such as an A100, and is stopped at
    the end.
    """
    said = program(f"printf '{HEAD}GPU 0     0.625\\n'; exec sleep 600")
    gpu = GpuUse(0, "NVIDIA A100-SXM4-80GB", 0.9, 1 << 30, 80 << 30, 61, 300.0, 1410)
    monkeypatch.setattr(nvml, "gpus", lambda: [gpu])
    monkeypatch.setattr(dcgm.TensorActivity.__init__, "__defaults__", (60.0,))
    look = NodeMeter("20270101-000000-abcd", [0], nvml.visible_gpus(None))
    assert look.sample()["gpu 0"]["tensor_fraction"] == 0.625
    assert look.sample()["gpu 0"]["tensor_fraction"] is None, "nothing new was said"
    look.close()
    wait_for_end(said)
