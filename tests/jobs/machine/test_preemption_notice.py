"""The program of backend.preemption_notice: its exit codes, its output, and a program that does not end."""

import os
import signal
import time
from pathlib import Path

import pytest

from nbtrain.jobs.machine import preemption_notice, processes
from nbtrain.jobs.machine.preemption_notice import PreemptionNotice
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a program minutes to answer, since on a busy machine its start alone may take seconds."""
    monkeypatch.setattr(preemption_notice, "TIMEOUT_SECONDS", 600.0)


def answer(notice: PreemptionNotice) -> str:
    """Look until the program has ended or was given up, and return the notice."""

    def ended() -> bool:
        notice.poll()
        return notice._process is None

    wait_until(ended, "the program has neither ended nor been given up", pause_seconds=0.01)
    return notice._answer


@pytest.mark.parametrize(
    ("script", "notice", "trouble"),
    [
        ("echo terminate at 08:22", "backend.preemption_notice (sh) gave notice: terminate at 08:22", ""),
        ("exit 0", "backend.preemption_notice (sh) gave notice", ""),
        ("echo 404; exit 22", "", ""),
        ("kill -9 $$", "", "backend.preemption_notice: sh was killed by SIGKILL"),
        # Python has no name for it.
        ("kill -35 $$", "", "backend.preemption_notice: sh was killed by signal 35"),
    ],
)
def test_only_exit_code_0_is_a_notice(script: str, notice: str, trouble: str) -> None:
    """Exit code 0 is a notice with the last line of output; another code is none; a killed program is
    reported.
    """
    asked = PreemptionNotice(["sh", "-c", script], 1.0)
    assert (answer(asked), asked.trouble) == (notice, trouble)


def test_the_command_is_a_list_and_its_failure_is_reported(tmp_path: Path) -> None:
    """No shell reads the arguments, and a program that does not exist is reported."""
    made = tmp_path / "made"
    asked = PreemptionNotice(["false", f"; touch {made}"], 1.0)
    assert answer(asked) == "" and not made.exists() and asked.trouble == ""
    absent = PreemptionNotice(["no-such-program"], 1.0)
    assert answer(absent) == ""
    assert absent.trouble.startswith("backend.preemption_notice: no-such-program did not start: ")
    assert PreemptionNotice([], 1.0).poll() == ""


def test_its_exit_code_is_not_lost_to_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor reaps orphans; a program that was reaped so would seem to have ended with 0, a notice."""
    asked = PreemptionNotice(["sh", "-c", "exit 3"], 1.0)
    asked.poll()
    process = asked._process
    assert process is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(processes, "children", lambda pid: [process.pid])
    monkeypatch.setattr(processes, "prctl", lambda option, adopts: setattr(adopts._obj, "value", 1))
    processes.reap_orphans()
    assert answer(asked) == "" and process.returncode == 3
    assert process.pid not in processes._awaited


@pytest.mark.slow
def test_a_program_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that does not answer never blocks, and is killed with everything that it has started."""
    pid = tmp_path / "pid"
    asked = PreemptionNotice(["sh", "-c", f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"], 1.0)
    asked.poll()
    wait_until(pid.exists, "the program has started no child")
    monkeypatch.setattr(preemption_notice, "TIMEOUT_SECONDS", 0.0)
    assert answer(asked) == ""
    assert asked.trouble == "backend.preemption_notice: sh took more than 0 s and was killed"
    child = int(pid.read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(60_000):
            os.kill(child, signal.SIGCONT)
            time.sleep(0.01)


def test_a_program_that_prints_without_end_fills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is not kept on a disk or in memory beyond the part in which the last line is searched."""
    asked = PreemptionNotice(["yes"], 60.0)
    asked.poll()
    while len(asked._output) < preemption_notice.OUTPUT_BYTES:
        asked.poll()
    monkeypatch.setattr(preemption_notice, "TIMEOUT_SECONDS", 0.0)
    assert answer(asked) == ""
    assert asked.trouble == "backend.preemption_notice: yes took more than 0 s and was killed"
    assert 0 < len(asked._output) <= preemption_notice.OUTPUT_BYTES


def test_a_program_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of root, or one that waits for a dead disk, delays nothing and is not started twice."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(preemption_notice, "TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(os, "killpg", refuse)
    asked = PreemptionNotice(["sleep", "600"], 0.0)
    for _ in range(3):
        assert asked.poll() == ""
    process = asked._process
    assert process is not None and process.poll() is None and "was killed" in asked.trouble
    process.kill()
    process.wait()
    asked._interval_seconds = 60.0
    assert asked.poll() == "" and asked._process is None
