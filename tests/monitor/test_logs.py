"""Logs of a job: their end, what was appended, and following one to the job's end."""

import threading
import time
from pathlib import Path

import pytest

from nbtrain.base.rundir import RunDir
from nbtrain.monitor import logs
from tests.lab.widgets.fake_run import FakeJob


def test_without_an_offset_the_end_comes_from_a_lines_beginning(tmp_path: Path) -> None:
    """Only whole lines are shown, and the offset to go on from is the file's end."""
    path = tmp_path / "0.0.log"
    path.write_text("first line\nsecond line\nthird line\n")
    part = logs.read_log(path, limit_bytes=20)
    assert part.text == "third line\n"
    assert (part.start_bytes, part.end_bytes, part.size_bytes) == (23, 34, 34)


def test_offset_goes_on_without_losing_or_doubling_a_byte(tmp_path: Path) -> None:
    """Piece by piece, cut at line ends, the whole log comes out; characters of several bytes stay whole."""
    path = tmp_path / "0.0.log"
    text = "".join(f"step {step}: loss 3.14 \N{GREEK SMALL LETTER ALPHA}\n" for step in range(50))
    path.write_text(text)
    pieces, offset = [], 0
    while (part := logs.read_log(path, offset, limit_bytes=100)).end_bytes > offset:
        pieces.append(part.text)
        offset = part.end_bytes
    assert "".join(pieces) == text
    assert len(pieces) > 10


def test_missing_log_is_empty_and_an_offset_past_the_end_too(tmp_path: Path) -> None:
    """Neither is an error: the rank may not have spoken yet."""
    assert logs.read_log(tmp_path / "none.log") == logs.LogPart("", 0, 0, 0)
    path = tmp_path / "0.0.log"
    path.write_text("one\n")
    assert logs.read_log(path, 400) == logs.LogPart("", 4, 4, 4)


def test_redrawn_progress_bar_counts_as_its_last_state(tmp_path: Path) -> None:
    """A line with carriage returns shows what a terminal would."""
    path = tmp_path / "0.0.log"
    path.write_text("10%\r50%\r100%\r\ndone\n")
    assert logs.tail_lines(path, 5) == ["100%", "done"]
    assert logs.tail_lines(path, 1) == ["done"]
    assert logs.tail_lines(path, 0) == []


def test_newest_attempt_of_a_rank_is_shown(tmp_path: Path) -> None:
    """Attempts sort as numbers; another can be asked for; the supervisor has its own log."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3).job
    for attempt in (0, 2, 10):
        job.log(1, attempt).write_text(f"attempt {attempt}\n")
    assert logs.log_attempts(job)[1] == [0, 2, 10]
    assert logs.log_path(job, 1) == job.log(1, 10)
    assert logs.log_path(job, "1", 2) == job.log(1, 2)
    assert logs.log_path(job, "supervisor") == job.supervisor_log


def test_follow_yields_new_lines_until_the_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what comes after the call, each line once, the last one also without a line end."""
    monkeypatch.setattr(logs, "FOLLOW_POLL_SECONDS", 0.02)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=5)
    job.one_step()
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(logs.follow(job.run)), daemon=True)
    reader.start()
    time.sleep(0.2)
    for _ in range(3):
        job.one_step()
        time.sleep(0.05)
    with job.job.log(0, 0).open("a") as stream:
        stream.write("cut off")
    job.finish("SUCCEEDED", "all tokens are done and saved")
    reader.join(5)
    assert not reader.is_alive()
    assert [line.split("|")[0].split()[-1] for line in seen[:3]] == ["2", "3", "4"]
    assert seen[3:] == ["cut off"]
