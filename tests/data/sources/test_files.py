"""Sources that are files: which are read, in which order and parts, and what is said where there are none."""

import os
import pickle

import pytest

from nbtrain.config.sources import JsonlSource, TextSource
from nbtrain.data.records import Tally
from nbtrain.data.sources.base import open_source
from nbtrain.errors import DataError


def text(path, **settings):
    return TextSource(kind="text", path=path, **settings)


def jsonl(path, **settings):
    return JsonlSource(kind="jsonl", path=path, **settings)


@pytest.fixture
def write(workspace):
    """A function that writes files by name below the workspace."""

    def write_files(**contents):
        for name, content in contents.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return write_files


def test_order_and_what_is_left_out(write, read):
    """Files come in the order of their relative paths; other suffixes and hidden files are not read."""
    write(
        **{
            "in/b.txt": b"third",
            "in/a/z.txt": b"second",
            "in/a.txt": b"first",
            "in/c.md": b"no",
            "in/.b.txt": b"no",
            "in/.ipynb_checkpoints/b-checkpoint.txt": b"no",
        }
    )
    found = read(text("in"))
    assert found.records == ["first", "second", "third"]
    assert found.parts == ["in/a.txt to in/b.txt (3 files)"]


def test_small_files_share_parts(write, read, part_bytes):
    """Files are grouped in order up to PART_BYTES; each group has a name of its own."""
    write(**{f"in/{number}.txt": b"x" * 40 for number in range(5)})
    part_bytes(100)
    found = read(text("in"))
    assert found.parts == [
        "in/0.txt to in/1.txt (2 files)",
        "in/2.txt to in/3.txt (2 files)",
        "in/4.txt",
    ]
    assert found.part_bytes == [80, 80, 40]
    assert len(found.records) == 5


def test_a_large_file_among_small_ones(write, read, part_bytes):
    """The order of files stands; a large one is cut at line ends and its parts name their bytes."""
    write(
        **{
            "in/a.jsonl": b'{"text": "a"}\n',
            "in/b.jsonl": b'{"text": "b"}\n' * 5,
            "in/c.jsonl": b'{"text": "c"}\n',
        }
    )
    part_bytes(30)
    found = read(jsonl("in"))
    assert found.records == ["a", "b", "b", "b", "b", "b", "c"]
    assert found.parts == [
        "in/a.jsonl",
        "in/b.jsonl, bytes 0 to 42",
        "in/b.jsonl, bytes 42 to 70",
        "in/c.jsonl",
    ]


def test_readers_and_parts_go_to_workers(write, part_bytes):
    """Both are picklable, and the copy reads the same."""
    write(**{"a.jsonl": b'{"text": "a"}\n' * 4})
    part_bytes(20)
    reader, parts = pickle.loads(
        pickle.dumps((reader := open_source(jsonl("a.jsonl")), list(reader.parts())))
    )
    assert len(parts) == 2
    assert parts == list(reader.parts())


def test_missing_path_and_empty_folder(workspace, refusal):
    """A path that is not there, and a folder without such files, name the setting and where it was looked for."""
    assert refusal(jsonl("nowhere/x.jsonl")) == (
        "run.yaml:7: data.sources[0]: path = 'nowhere/x.jsonl': no such file or folder (nowhere/x.jsonl). Relative "
        "paths start at the workspace."
    )
    (workspace / "empty").mkdir()
    assert refusal(text("empty")) == (
        "run.yaml:7: data.sources[0]: path = 'empty': the folder holds no .txt, .txt.gz, .txt.zst or .txt.bz2 file."
    )


def test_unreadable_file(write, workspace, refusal, unreadable):
    """A file that may not be read is an error in words."""
    write(**{"a.jsonl": b"{}"})
    unreadable(workspace / "a.jsonl")
    assert refusal(jsonl("a.jsonl")) == (
        "run.yaml:7: data.sources[0]: a.jsonl: cannot be read: Permission denied."
    )


def test_fingerprint_follows_the_files(write, workspace):
    """Sizes and times of the files, by name within the source, so that the workspace may move."""
    write(**{"in/a.jsonl": b"{}"})
    os.utime(workspace / "in" / "a.jsonl", ns=(5, 5))
    assert open_source(jsonl("in")).fingerprint() == {"files": {"a.jsonl": [2, 5]}}
    assert open_source(jsonl("in/a.jsonl")).fingerprint() == {"files": {"a.jsonl": [2, 5]}}


def test_a_file_that_becomes_shorter(write, workspace, part_bytes):
    """A file that is written to between the plan and the reading is an error and not a shorter corpus."""
    write(**{"a.jsonl": b'{"text": "a"}\n' * 4})
    part_bytes(20)
    reader = open_source(jsonl("a.jsonl"), "data.sources[0]")
    parts = list(reader.parts())
    write(**{"a.jsonl": b'{"text": "a"}\n' * 3})
    with pytest.raises(DataError) as caught:
        list(reader.read(parts[1], Tally()))
    assert str(caught.value) == (
        "data.sources[0]: a.jsonl: has become shorter while it was read. Let nothing write to it, and start again."
    )
