"""Fixtures that read a source part by part, numbering the lines of a file across its parts."""

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nbtrain.base.errors import DataError
from nbtrain.corpus.records import Record, Tally
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.base import SourceReader, open_source

WHERE = "run.yaml:7: data.sources[0]"


@dataclass
class Found:
    """The result of reading a source completely."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Problems in the form of messages: file:line: reason."""
    counts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    unread_keys: Counter[str] = field(default_factory=Counter)
    parts: list[str] = field(default_factory=list)
    part_bytes: list[int] = field(default_factory=list)


def read_all(reader: SourceReader) -> Found:
    """Read each part with a separate tally, as worker processes do."""
    found = Found()
    lines: Counter[str] = Counter()
    for part in reader.parts():
        tally = Tally()
        found.records += list(reader.read(part, tally))
        found.parts.append(part.name)
        found.part_bytes.append(part.size_bytes)
        for problem in tally.problems:
            line = "" if problem.line is None else f":{problem.line + lines[problem.path]}"
            found.problems.append(f"{problem.path}{line}: {problem.what}")
        if part.path is not None:
            lines[part.path] += tally.lines
        found.counts.update(records=tally.records, broken=tally.broken)
        found.dropped.update(tally.dropped)
        found.unread_keys.update(tally.unread_keys)
    # An empty compressed file may have no part.
    assert not found.parts or sum(found.part_bytes) == reader.total_bytes()
    assert len(set(found.parts)) == len(found.parts)
    return found


@pytest.fixture(scope="session")
def read_parts():
    """Return a function that reads all parts with a reader. Session-scoped, as Hypothesis requires."""
    return read_all


@pytest.fixture
def read():
    """Return a function that reads the records of a section of data.sources."""

    def read_source(config, extra_keys: tuple[str, ...] = ()) -> Found:
        return read_all(open_source(config, WHERE, extra_keys))

    return read_source


@pytest.fixture
def refusal(read):
    """Return a function that returns the DataError message for a section of data.sources."""

    def refuse(config, extra_keys: tuple[str, ...] = ()) -> str:
        with pytest.raises(DataError) as caught:
            read(config, extra_keys)
        return str(caught.value)

    return refuse


@pytest.fixture
def part_bytes(monkeypatch):
    """Return a function that sets the size of parts."""
    return lambda size: monkeypatch.setattr(base, "PART_BYTES", size)


@pytest.fixture
def unreadable():
    """Return a function that removes read permission from a file. Skips for root, who can read any file."""

    def forbid(path: Path) -> None:
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read every file")

    return forbid


@pytest.fixture
def closed(workspace, monkeypatch):
    """Return a function that makes folders of the workspace inaccessible, even for root."""

    def close(*names: str) -> None:
        folders = [workspace / name for name in names]
        scandir, stat = os.scandir, os.stat

        def refuse(path) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        monkeypatch.setattr(
            os, "scandir", lambda path: refuse(path) if Path(path) in folders else scandir(path)
        )
        monkeypatch.setattr(
            os,
            "stat",
            lambda path, **options: (
                refuse(path)
                if not isinstance(path, int) and Path(path).parent in folders
                else stat(path, **options)
            ),
        )

    return close
