"""Progress bars in a log: complete lines with rate and ETA."""

import io

from nbtrain.base.printing import progress


def test_a_log_gets_whole_lines_with_rate_and_eta(monkeypatch):
    """A log gets a line every 5 s and one at the end, without carriage returns."""
    clock = iter([0.0, 1.0, 5.0, 5.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with progress.Progress("encode", 4000, "docs", stream) as bar:
        bar.update(500)
        bar.update(1500, tokens="1.2M")
    assert stream.getvalue().splitlines() == [
        "encode: 2/4k docs (50%), 400 docs/s, ETA 5 s, tokens 1.2M",
        "encode: 2/4k docs, 200 docs/s, 10 s in all, tokens 1.2M",
    ]


def test_a_line_of_its_own(monkeypatch):
    """A message is printed on a line of its own, in a log and above a bar in a terminal."""
    for is_terminal in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda here=is_terminal: here)
        with progress.Progress("encode", 10, "B", stream) as bar:
            bar.say("in two parts")
        assert "encode: in two parts\n" in stream.getvalue()


def test_bytes_are_written_as_people_write_them(monkeypatch):
    """Amounts are shown as MB and rates as MB/s, without a space inside the unit."""
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with progress.Progress("join", 2e6, "B", stream) as bar:
        bar.done = 2e6
    assert stream.getvalue() == "join: 2/2MB, 200kB/s, 10 s in all\n"
    clock = iter([0.0, 1.0])
    stream = io.StringIO()
    with progress.Progress("join", 2e9, "B", stream) as bar:
        bar.done = 2e9
    assert stream.getvalue() == "join: 2/2GB, 2GB/s, 1 s in all\n"


def test_a_watched_notebook_shows_a_bar_instead_of_lines(monkeypatch):
    """The notebook's bar receives the fraction twice a second and 1 at the end; a terminal has tqdm's bar."""
    clock = iter([0.0, 0.4, 0.6, 0.6, 2.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = []
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setattr(progress, "Bar", lambda: lambda *bar: shown.append(bar))
    stream = io.StringIO()
    with progress.Progress("encode", 10, "docs", stream) as bar:
        bar.update(3)
        bar.update(3)
    assert shown == [
        ("encode", 0.6, "6/10 docs (60%), 10 docs/s, ETA 0 s"),
        ("encode", 1.0, "6/10 docs, 3 docs/s, 2 s in all"),
    ]
    assert stream.getvalue() == ""
