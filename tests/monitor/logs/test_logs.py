"""A job's logs: reading the tail and appended text, following, searching, and finding the last traceback."""

import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbtrain.api.run import Run
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import AttemptRecord, ExitRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.monitor.logs import log_lines, log_search, logs
from nbtrain.monitor.logs.tracebacks import failed_rank, last_traceback
from tests.lab.widgets.fake_run import FakeJob


def test_without_an_offset_the_end_comes_from_a_lines_beginning(tmp_path: Path) -> None:
    """Without an offset, the tail starts at the beginning of a line, and the next offset is the end of the
    file.
    """
    path = tmp_path / "0.0.log"
    path.write_text("first line\nsecond line\nthird line\n")
    part = logs.read_log(path, limit_bytes=20)
    assert part.text == "third line\n"
    assert (part.start_bytes, part.end_bytes, part.size_bytes) == (23, 34, 34)


def test_offset_goes_on_without_losing_or_doubling_a_byte(tmp_path: Path) -> None:
    """Successive reads, each from the offset that the last one returned, return every byte once, in complete
    lines and characters.
    """
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
    """A missing log or an offset beyond the end returns an empty text, because the rank may write the log
    later.
    """
    assert logs.read_log(tmp_path / "none.log") == logs.LogPart("", 0, 0, 0)
    path = tmp_path / "0.0.log"
    path.write_text("one\n")
    assert logs.read_log(path, 400) == logs.LogPart("", 4, 4, 4)


def test_redrawn_progress_bar_counts_as_its_last_state(tmp_path: Path) -> None:
    """A progress bar that was redrawn with carriage returns is shown in its last state, as in a terminal."""
    path = tmp_path / "0.0.log"
    path.write_text("10%\r50%\r100%\r\ndone\n")
    assert logs.tail_lines(path, 5) == ["100%", "done"]
    assert logs.tail_lines(path, 1) == ["done"]
    assert logs.tail_lines(path, 0) == []


def test_newest_attempt_of_a_rank_is_shown(tmp_path: Path) -> None:
    """The log of the newest attempt (in numeric order) is shown by default; another attempt can be
    requested.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3).job
    for attempt in (0, 2, 10):
        job.log(1, attempt).write_text(f"attempt {attempt}\n")
    assert logs.log_attempts(job)[1] == [0, 2, 10]
    assert logs.log_path(job, 1) == job.log(1, 10)
    assert logs.log_path(job, "1", 2) == job.log(1, 2)
    assert logs.log_path(job, "supervisor") == job.supervisor_log


def test_follow_yields_new_lines_until_the_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Following a log yields each new line once until the job ends, including a last line without a
    newline.
    """
    monkeypatch.setattr(logs, "FOLLOW_POLL_SECONDS", 0.02)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=5)
    job.one_step()
    seen: list[str] = []
    follows, read_log = threading.Event(), logs.read_log

    def read(*arguments: Any, **named: Any) -> Any:
        part = read_log(*arguments, **named)
        follows.set()
        return part

    monkeypatch.setattr(logs, "read_log", read)
    reader = threading.Thread(target=lambda: seen.extend(logs.follow(job.run)), daemon=True)
    reader.start()
    assert follows.wait(600)
    for _ in range(3):
        job.one_step()
        time.sleep(0.05)
    with job.job.log(0, 0).open("a") as stream:
        stream.write("cut off")
    job.finish("SUCCEEDED", "all tokens are done and saved")
    reader.join(600)
    assert not reader.is_alive()
    assert [line.split("|")[0].split()[-1] for line in seen[:3]] == ["2", "3", "4"]
    assert seen[3:] == ["cut off"]


def test_follow_reads_a_log_to_its_end_before_the_next_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following finishes the log of one attempt before it continues with the log of the next attempt."""
    monkeypatch.setattr(logs, "FOLLOW_POLL_SECONDS", 0.0)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=5)
    job.job.log(0, 0).write_text("step 1\n")
    lines = logs.follow(job.run, from_start=True)
    assert next(lines) == "step 1"
    job.job.log(0, 0).write_text("step 1\n10%\r20%\rstep 2\nline\u2028separator\ncut off")
    job.job.log(0, 1).write_text("step 3\n")
    job.finish("CANCELLED", "stopped on request after step 3")
    # A progress bar has its last state, as in tail_lines().
    assert list(lines) == ["step 2", "line\u2028separator", "cut off", "step 3"]


def grown(path: Path, size_bytes: int, end: str) -> None:
    """Create a sparse log of `size` bytes with text at its end."""
    with path.open("wb") as stream:
        stream.truncate(size_bytes)
        stream.seek(size_bytes)
        stream.write(end.encode())


def peak_bytes(work: Callable[[], None]) -> int:
    """Return the peak memory of Python objects during `work`."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_log_of_a_gigabyte_costs_the_memory_of_its_end(tmp_path: Path) -> None:
    """Reading or following the end of a 1 GB log does not read the rest, and needs little memory."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3)
    grown(job.job.log(0, 0), 1 << 30, "\nthe last line\n")
    job.finish("SUCCEEDED", "all tokens are done and saved")
    path = job.job.log(0, 0)
    assert logs.tail_lines(path, 1) == ["the last line"]
    assert peak_bytes(lambda: logs.tail_lines(path, 50) and None) < 1 << 20
    assert peak_bytes(lambda: list(logs.follow(job.run)) and None) < 1 << 20


@pytest.mark.slow
def test_much_that_was_added_between_two_looks_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If 4 MB were added since the last read, they are returned completely and in order, in parts of a
    quarter MB.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3)
    path = job.job.log(0, 0)
    lines = [f"step {step}" for step in range(300_000)]
    seen, counted, long = [0], [0], "x" * (logs.READ_LIMIT_BYTES + 10)

    def add_then_end(seconds: float) -> None:
        with path.open("a") as stream:
            stream.writelines(f"{line}\n" for line in lines)
            stream.write(f"{long}\nlast")
        job.finish("SUCCEEDED", "all tokens are done and saved")

    def read() -> None:
        found = logs.follow(job.run)
        for line, expected in zip(found, lines):
            seen[0] += line == expected
        rest = list(found)
        counted[0] = sum(map(len, rest))

    monkeypatch.setattr(logs.time, "sleep", add_then_end)
    assert peak_bytes(read) < 4 << 20
    assert seen == [300_000]
    # zip has consumed one line more than it returned.
    assert counted[0] in (len(long) + len("last"), len("last") + 10)


def test_search_goes_over_ranks_attempts_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search covers the logs of all ranks and attempts, also where a match crosses two blocks; each hit has
    its log and line.
    """
    monkeypatch.setattr(log_search, "BLOCK_BYTES", 64)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3).job
    earlier = job.run.job("20200101-000000-abcd")
    earlier.make_folders()
    for name in ("node10.log", "node9.log", "supervisor.log"):
        (earlier.path / "logs" / name).write_text("needle\n")
    both = [str(hit) for hit in log_search.search([job, earlier], "needle")]
    assert both == [f"{earlier.job_id}/{name}.log:1: needle" for name in ("supervisor", "node9", "node10")]
    job.supervisor_log.write_text("state: needle\n")
    job.log(0, 0).write_text("".join(f"line {line}\n" for line in range(40)) + "a needle, then a Needle\nend")
    job.log(0, 2).write_text("10% \r50% needle\r100%\nneedle at the end")
    job.log(1, 0).write_text("x" * 100 + "needle" + "y" * 100)

    def found(*wanted: object, **more: bool) -> list[str]:
        hits = log_search.search([job], "needle", *wanted, **more)  # type: ignore[arg-type]
        return [str(hit).removeprefix(f"{job.job_id}/") for hit in hits]

    first, second = "0.0.log:41: a needle, then a Needle", "0.2.log:1: 50% needle"
    hits = found()
    assert hits[:4] == ["supervisor.log:1: state: needle", first, second, "0.2.log:2: needle at the end"]
    assert len(hits) == 5 and hits[4].startswith("1.0.log:1: ") and "needle" in hits[4]
    assert found(0) == hits[1:4]
    for hit in log_search.search([job], "needle"):
        content = (job.path / "logs" / hit.log).read_bytes()
        lines_before = content[: hit.offset_bytes].count(b"\n")
        assert lines_before == hit.line_number - 1
        # Where a line begins, or a block within a longer line.
        assert content[hit.offset_bytes - 1 : hit.offset_bytes] in (b"", b"\n") or hit.log == "1.0.log"
        assert b"needle" in content[hit.offset_bytes : hit.offset_bytes + 100]
    job.log(0, 0).write_text("NEEDLE\n")
    assert found(0)[0] == second
    assert found(0, ignore_case=True)[0] == "0.0.log:1: NEEDLE"
    # The end of a block splits the text at each possible place.
    for place in range(130):
        job.log(0, 0).write_text("." * place + "needle" + "." * 70)
        assert len(found(0)) == 3, place


def test_a_pattern_is_searched_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern matches within a line, or one state of a progress bar; a hit has the spans of its matches."""
    monkeypatch.setattr(log_search, "BLOCK_BYTES", 64)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3).job
    lines = [
        *(f"step {step}" for step in range(20)),
        "\N{GREEK SMALL LETTER ALPHA} NaN nan",
        "10%\r50% left\r100%",
    ]
    job.log(0, 0).write_text("\n".join(lines) + "\nend")

    def found(pattern: str, **more: bool) -> list[tuple[int, str, list[tuple[int, int]]]]:
        hits = log_search.search([job], pattern, is_pattern=True, **more)
        return [(hit.line_number, hit.text, [*hit.spans]) for hit in hits]

    assert found(r"^step 1\d$")[1] == (12, "step 11", [(0, 7)])
    assert len(found(r"^step 1\d$")) == 10 and found(r"19\s+.") == []
    assert found("n.n") == [(21, "\N{GREEK SMALL LETTER ALPHA} NaN nan", [(6, 9)])]
    assert found("n.n", ignore_case=True)[0][2] == [(2, 5), (6, 9)]
    assert found(r"5\d% l?") == [(22, "50% left", [(0, 5)])]
    # Neither the end of a block nor that of the file is an empty line.
    assert found("^$") == []
    job.log(0, 0).write_text("a\n\nb\n")
    assert found("^$") == [(2, "", [])]
    with pytest.raises(ConfigError, match=r"not a regular expression.*position 1"):
        found("a(b")


@pytest.mark.slow
def test_a_pattern_that_takes_for_ever_is_ended(tmp_path: Path) -> None:
    """The lines that were found by then are returned, and the search is reported as incomplete."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3).job
    job.log(0, 0).write_text("a" * 8 + "\n" + "a" * 64 + "b\n")
    hits, is_complete = log_search.search_in_time([job], "(a+)+$", seconds=2.0)
    # On a busy machine, the process may not have started by then.
    assert [hit.line_number for hit in hits] in ([1], []) and not is_complete
    hits, is_complete = log_search.search_in_time([job], "a+b?", most=1, seconds=60.0)
    assert (len(hits), is_complete) == (1, True)


def test_lines_are_numbered_wherever_a_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an offset, around a line and at the end, also while a log grows; a replaced log is recounted."""
    monkeypatch.setattr(log_lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(log_lines, "BEFORE_BYTES", 20)
    path, numbers = tmp_path / "0.0.log", log_lines.LineNumbers()
    assert numbers.read(path).first_line == 1
    lines = [f"line {number}\n" for number in range(1, 201)]
    path.write_text("".join(lines))
    for number in (1, 2, 5, 100, 199, 200):
        for part in (numbers.read(path, len("".join(lines[: number - 1]))), numbers.read(path, line=number)):
            text = part.text.splitlines()[number - part.first_line]
            assert text == f"line {number}"
    assert numbers.read(path, line=5000).first_line == 1
    with path.open("a") as stream:
        stream.write("line 201\n" * 100)
    assert numbers.read(path, line=201).text.splitlines()[-100] == "line 201"
    monkeypatch.setattr(log_lines, "MOST_COUNTED_BYTES", 1024)
    fresh, end = log_lines.LineNumbers(), path.stat().st_size
    counted = [fresh.read(path, end).first_line for _ in range(4)]
    assert counted[0] is None and counted[-1] == 301
    path.write_text("new\nfile\n")
    assert numbers.read(path, 4).first_line == 2


def test_a_search_in_a_gigabyte_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching a log that consists of one 10 MB line without a newline needs little memory."""
    path = tmp_path / "0.0.log"
    grown(path, 10 << 20, "needle")
    assert peak_bytes(lambda: list(log_search.search_file(path, "needle")) and None) < 5 << 20


def test_the_last_traceback_is_that_of_the_rank_that_failed(tmp_path: Path) -> None:
    """The last traceback is taken from the failed rank's exit record, from its log, or from the event of a
    hang.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=3, world_size=4).job
    job.log(0, 0).write_text("")
    record = JobRecord.read(job.job_json)
    record.state, record.cause = "FAILED", "rank 3 failed"
    record.write(job.job_json)
    assert failed_rank(job) == 0
    record.attempts = [AttemptRecord(0, 1.0, 4, 4, ended_at=2.0, cause="rank 3 failed", failed_rank=3)]
    record.write(job.job_json)
    # A rank without a log has nothing to show.
    assert failed_rank(job) == 0
    job.log(3, 0).write_text("")
    assert failed_rank(job) == 3
    assert last_traceback(job, 3) is None
    EventWriter(job, "test").write("hang", "rank 3 stood", rank=3, stack=["a.py:1 in wait", "b.py:2 in step"])
    assert last_traceback(job, 3) == (
        "Stack of the hanging rank, innermost frame first:\n  a.py:1 in wait\n  b.py:2 in step"
    )
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: old"]
    newer = [*lines[:2], "ValueError: new"]
    logged = "\n".join(["start", *lines, *(f"[rank3]: {line}" for line in newer), "[rank3]: after it", ""])
    job.log(3, 0).write_text(logged)
    assert last_traceback(job, 3) == "\n".join(newer)
    ExitRecord(3, 0, 1.0, 1, None, "failed", 2, "boom", "Traceback ...\nValueError: said\n").write(
        job.exit_record(3, 0)
    )
    assert last_traceback(job, 3) == "Traceback ...\nValueError: said"


@pytest.mark.parametrize(
    ("state", "cause", "line"),
    [
        (
            "QUEUED",
            "waits for 1 GPU; 0 are free",
            "waits for 1 GPU; 0 are free; log lines follow when the job starts.",
        ),
        ("QUEUED", None, "its supervisor has not started yet; log lines follow when the job starts."),
        (
            "STARTING",
            None,
            "its ranks have written nothing yet; log lines follow when its ranks write to the log.",
        ),
        ("RESTARTING", "rank 0 failed", "rank 0 failed; log lines follow when the job starts again."),
        ("SUSPENDED", "paused; saved", "paused; saved; log lines follow when the job is resumed."),
        ("RUNNING", None, None),
        ("FAILED", "boom", None),
    ],
)
def test_following_a_job_that_waits_says_why(workspace, monkeypatch, capsys, state, cause, line) -> None:
    """Following a job that is waiting prints one line with the reason, in addition to the lines of its
    log.
    """
    job = FakeJob(RunDir.named("gpt-fake"), steps=5)
    job.record.state, job.record.cause = state, cause
    job.record.write(job.job.job_json)
    job.tensorboard.close()
    monkeypatch.setattr(Run, "follow", lambda self, rank: iter(["a line"]))
    assert cli.main(["logs", "-f", "gpt-fake"]) == 0
    said = capsys.readouterr()
    assert "a line\n" in said.out
    assert said.err == (f"gpt-fake is {state}: {line}\n" if line else "")
