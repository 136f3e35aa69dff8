"""The launcher of a machine's ranks, with commands of the shell as ranks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbtrain.jobs.machine.processes import process_state
from tests.waiting import wait_until

# Every test starts processes.
pytestmark = pytest.mark.slow


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Return a function that starts ranks 3 and 4 in `tmp_path`: launch(script)."""
    started = []

    def launch(script: str, shutdown_timeout: float = 600.0) -> subprocess.Popen:
        command = [
            *(sys.executable, "-m", "nbtrain.jobs.node.rank_launcher", "--ranks", "2", "--first-rank", "3"),
            *("--shutdown-timeout", str(shutdown_timeout), "sh", "-c", script),
        ]
        started.append(subprocess.Popen(command, cwd=tmp_path))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


def test_each_rank_has_its_numbers(launch: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    """Ranks are numbered from --first-rank, and local ranks from 0. The code is 0 if all end with 0."""
    assert launch('echo "$RANK $LOCAL_RANK" > "$RANK"').wait(600) == 0
    assert [(tmp_path / rank).read_text() for rank in ("3", "4")] == ["3 0\n", "4 1\n"]


def test_a_rank_that_fails_ends_the_others(launch: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    """If a rank fails, the others get TERM, and KILL if they do not end in time."""
    script = """
    if [ "$RANK" = 3 ]; then until [ -s pid ]; do sleep 0.05; done; exit 7; fi
    trap '' TERM
    echo $$ > pid
    while true; do sleep 0.05; done
    """
    assert launch(script, shutdown_timeout=1.0).wait(600) == 1
    assert process_state(int((tmp_path / "pid").read_text())) == "X"


def test_a_rank_that_cannot_be_started_ends_the_others(tmp_path: Path) -> None:
    """If the machine has no room for one more process, the ranks before it are ended."""
    starter = """
import subprocess, sys
from nbtrain.jobs.node import rank_launcher
start, started = subprocess.Popen, []
def popen(command, **options):
    if started:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    started.append(start(command, **options))
    print(started[0].pid, flush=True)
    return started[0]
subprocess.Popen = popen
options = ["--ranks", "2", "--first-rank", "3", "--shutdown-timeout", "600"]
sys.exit(rank_launcher.main([*options, "sleep", "600"]))
"""
    command = [sys.executable, "-c", starter]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, process_state(int(ended.stdout))) == (1, "X")
    assert "rank 4 cannot be started" in ended.stderr and "Resource temporarily unavailable" in ended.stderr


def test_ranks_may_save_when_the_launcher_is_asked_to_end(
    launch: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """TERM is passed on to all ranks, which end by themselves. USR1, a request to save, ends nothing."""
    launcher = launch(
        "trap 'touch saved$RANK; exit 0' TERM; touch ready$RANK; while true; do sleep 0.05; done"
    )
    wait_until(lambda: len(list(tmp_path.glob("ready*"))) == 2, "both ranks run")
    os.kill(launcher.pid, signal.SIGUSR1)
    launcher.terminate()
    assert launcher.wait(600) == 1
    assert {path.name for path in tmp_path.glob("saved*")} == {"saved3", "saved4"}
