"""File sources: which files are read, in which order and parts, and the error if there are none."""

import bz2
import gzip
import os
import pickle
from pathlib import Path

import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.sections.sources import JsonlSource, TextSource, WikiextractorSource
from nbtrain.corpus.files.file_kinds import split_of
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources.base import open_source


def text(path, **settings):
    return TextSource(kind="text", path=path, **settings)


def jsonl(path, **settings):
    return JsonlSource(kind="jsonl", path=path, **settings)


@pytest.fixture
def write(workspace):
    """Return a function that writes files by name below the workspace."""

    def write_files(**contents):
        for name, content in contents.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return write_files


def test_order_and_what_is_left_out(write, read):
    """Files are read in the order of their relative paths; files with other suffixes
    and hidden files are skipped.
    """
    write(
        **{
            "in/b.txt": b"third",
            "in/a/z.txt": b"second",
            "in/a.txt": b"first",
            "in/c.rst": b"no",
            "in/.b.txt": b"no",
            "in/.ipynb_checkpoints/b-checkpoint.txt": b"no",
        }
    )
    found = read(text("in"))
    assert found.records == ["first", "second", "third"]
    assert found.parts == ["in/a.txt to in/b.txt (3 files)"]


def test_small_files_share_parts(write, read, part_bytes):
    """Small files are grouped in order up to PART_BYTES, and groups have different names."""
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
    """The order of files is kept; a large file is split at line ends into parts that
    are named by their bytes.
    """
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
    """Readers and parts can be pickled, and their copies read the same records."""
    write(**{"a.jsonl": b'{"text": "a"}\n' * 4})
    part_bytes(20)
    reader, parts = pickle.loads(
        pickle.dumps((reader := open_source(jsonl("a.jsonl")), list(reader.parts())))
    )
    assert len(parts) == 2
    assert parts == list(reader.parts())


def test_missing_path_and_empty_folder(workspace, refusal):
    """The error about a missing path, or a folder without matching files, names the setting and the path."""
    assert refusal(jsonl("nowhere/x.jsonl")) == (
        "run.yaml:7: data.sources[0]: path = 'nowhere/x.jsonl': no such file or folder (nowhere/x.jsonl). "
        "Relative "
        "paths start at the workspace."
    )
    (workspace / "empty").mkdir()
    assert refusal(text("empty")) == (
        "run.yaml:7: data.sources[0]: path = 'empty': the folder contains no file with the suffix .txt or "
        ".md "
        "(also compressed: .gz, .zst, .bz2, .xz). Change path or kind."
    )


def test_unreadable_file(write, workspace, refusal, unreadable):
    """A file without read permission raises a readable error."""
    write(**{"a.jsonl": b"{}"})
    unreadable(workspace / "a.jsonl")
    assert refusal(jsonl("a.jsonl")) == (
        "run.yaml:7: data.sources[0]: a.jsonl: cannot be read: Permission denied."
    )


def test_an_unreadable_folder(write, workspace, refusal, closed):
    """A folder that cannot be entered is an error, because its text would be missing;
    a hidden folder is ignored.
    """
    write(**{"in/a.jsonl": b"{}", "in/sub/deep/b.jsonl": b"{}", "in/.sub/c.jsonl": b"{}"})
    closed("in/sub/deep", "in/.sub")
    message = "run.yaml:7: data.sources[0]: in/sub/deep: cannot be read: Permission denied."
    assert refusal(jsonl("in")) == message
    assert refusal(WikiextractorSource(kind="wikiextractor", path="in")) == message
    assert refusal(text("in/sub/deep")) == message
    # Files in a folder without execute permission cannot even be inspected.
    assert refusal(jsonl("in/sub/deep/b.jsonl")) == message.replace("deep:", "deep/b.jsonl:")


def test_links(write, workspace, read):
    """Links are followed; each folder is read once, by its own name if it is inside the source."""
    write(
        **{
            "in/b/1.txt": b"1",
            "out/sub/2.txt": b"2",
            "out/3.txt": b"3",
            "far/4.txt": b"4",
        }
    )
    for name, target in {
        "in/a": "b",
        "in/b/loop": "..",
        "in/c": "../out/sub",
        "in/d": "../out",
        "in/e.txt": "../far/4.txt",
        "in/none.rst": "nowhere",
        "out/sub/up": "../../in",
        "out/.hidden.txt": "nowhere",
    }.items():
        (workspace / name).symlink_to(target)
    reader = open_source(text("in"))
    assert list(reader.fingerprint()["files"]) == ["b/1.txt", "c/2.txt", "d/3.txt", "e.txt"]
    assert read(text("in")).records == ["1", "2", "3", "4"]


@pytest.mark.parametrize("target", ["gone.txt", "in/a.txt"])
def test_a_link_that_leads_nowhere(write, workspace, refusal, target):
    """A dangling or circular link is an error, because its text would be missing."""
    write(**{"in/b.txt": b"b"})
    (workspace / "in" / "a.txt").symlink_to(workspace / target)
    message = (
        f"run.yaml:7: data.sources[0]: in/a.txt: this is a link to {str(workspace / target)!r}, which does "
        "not exist. Create that file, or remove the link."
    )
    assert refusal(text("in")) == message
    assert refusal(text("in/a.txt")) == message


def test_a_name_that_is_not_utf8(workspace, refusal, read):
    """A file name that is not UTF-8 is refused, because it cannot be recorded;
    skipped files may have any name.
    """
    (workspace / "in").mkdir()
    (workspace / "in" / "a.txt").write_text("a")
    (workspace / "in" / os.fsdecode(b"caf\xe9.jsonl")).write_text("{}")
    assert read(text("in")).records == ["a"]
    message = refusal(jsonl("in"))
    assert message.isascii()
    assert message == (
        "run.yaml:7: data.sources[0]: 'in/caf\\udce9.jsonl': the name is not UTF-8, but manifests store the "
        "names of a source's files as UTF-8. Rename the file."
    )


def test_what_is_no_regular_file(write, workspace, refusal, read):
    """A pipe or a device is refused, and the message says what it is."""
    write(**{"in/a.txt": b"a"})
    os.mkfifo(workspace / "in" / "b.jsonl")
    assert read(text("in")).records == ["a"]
    message = (
        "run.yaml:7: data.sources[0]: in/b.jsonl: this is not a regular file but a named pipe, and sources "
        "are read several times and from any position. Write the content to a file, and set the path to that "
        "file."
    )
    assert refusal(jsonl("in")) == message
    assert refusal(jsonl("in/b.jsonl")) == message
    assert refusal(jsonl("/dev/null")) == message.replace("in/b.jsonl", "/dev/null").replace(
        "a named pipe", "a device"
    )
    (workspace / "in" / "c.txt").symlink_to("b.jsonl")
    assert refusal(text("in")) == message.replace("b.jsonl", "c.txt")


def test_suffixes_in_capitals(write, read):
    """Suffixes in capitals, which Windows and cameras write, are accepted, also for compressed files."""
    write(**{"in/A.TXT": b"a", "in/b.txt.GZ": gzip.compress(b"b"), "in/c.Txt.Bz2": bz2.compress(b"c")})
    assert read(text("in")).records == ["a", "b", "c"]


def test_fingerprint_follows_the_files(write, workspace):
    """The fingerprint has size and time by the file's name within the source, so
    that a workspace can be moved.
    """
    write(**{"in/a.jsonl": b"{}"})
    os.utime(workspace / "in" / "a.jsonl", ns=(5, 5))
    assert open_source(jsonl("in")).fingerprint() == {"files": {"a.jsonl": [2, 5]}}
    assert open_source(jsonl("in/a.jsonl")).fingerprint() == {"files": {"a.jsonl": [2, 5]}}


def test_a_file_that_becomes_shorter(write, workspace, part_bytes):
    """A file that shrinks between planning and reading is an error instead of a smaller corpus."""
    write(**{"a.jsonl": b'{"text": "a"}\n' * 4})
    part_bytes(20)
    reader = open_source(jsonl("a.jsonl"), "data.sources[0]")
    parts = list(reader.parts())
    write(**{"a.jsonl": b'{"text": "a"}\n' * 3})
    with pytest.raises(DataError) as caught:
        list(reader.read(parts[1], Tally()))
    assert str(caught.value) == (
        "data.sources[0]: a.jsonl: the file became shorter while it was read. Make sure that no process "
        "writes to it, then run the command again."
    )


RECORD = b'{"text": "x"}\n'


def test_every_suffix_of_records(write, read):
    """Kind jsonl reads .jsonl, .ndjson and .json, compressed or not, in upper or lower case."""
    names = ("a.jsonl", "b.NDJSON", "c.json", "d/e.json.gz", "f.jsonl.bz2", "g.ndjson.gzip")
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".gzip": gzip.compress}
    contents = {
        name: pack.get(Path(name).suffix, bytes)(b'{"text": "%s"}\n' % name.encode()) for name in names
    }
    write(**{f"in/{name}": content for name, content in contents.items()})
    assert sorted(read(jsonl("in")).records) == sorted(names)


def test_each_file_that_is_not_read_is_named(write, caplog):
    """One warning names the files that are not read, except READMEs, licences and checksums."""
    beside = ("README.md", "LICENSE", "_SUCCESS", "dataset_infos.json", "a.jsonl.sha256", ".gitattributes")
    write(**{f"in/{name}": RECORD for name in ("a.jsonl", "b.csv", "c.parq", "d.txt.gz", "e", *beside)})
    open_source(jsonl("in"), "here").check_dependencies()
    assert caplog.messages == [
        "here: Files that kind: jsonl does not read are skipped: in/b.csv, in/c.parq (read by kind: "
        "parquet), in/d.txt.gz (read by kind: text), in/e."
    ]
    caplog.clear()
    write(**{f"in/{number:02}.csv": b"" for number in range(20)})
    open_source(jsonl("in"), "here").check_dependencies()
    assert caplog.messages[0].endswith("in/09.csv, and 14 more (.csv 11, .parq 1, .txt 1, no suffix 1).")


HUB = {
    "train.jsonl": "train",
    "data/train-00000-of-00002-0a1b.parquet": "train",
    "c4-train.00000-of-01024.json.gz": "train",
    "training/a.jsonl": "train",
    "validation_matched.jsonl": "validation",
    "en/dev.jsonl": "validation",
    "dev/en.jsonl": "validation",
    "Val-1.json": "validation",
    "wiki.test.tokens.txt": "test",
    "eval.jsonl": "test",
    "held-out/a.jsonl": "test",
    "heldout_2024.jsonl": "test",
    "train/test.jsonl": "test",
    "test/train.jsonl": "train",
    "train-test.jsonl": "test",
    "TestSet.jsonl": "test",
    "devset/a.jsonl": "validation",
    "latest.jsonl": None,
    "trains.jsonl": None,
    "device.jsonl": None,
    "contest/a.jsonl": None,
}


def test_the_split_that_a_name_says():
    """The split is the one that the last matching component of a path names;
    held-out splits take precedence.
    """
    assert {name: split_of(name) for name in HUB} == HUB


@pytest.mark.parametrize("held_out", ["test.jsonl", "dev/b.jsonl", "x-validation.jsonl.gz", "heldout.json"])
@pytest.mark.parametrize("other", ["train.jsonl", "a.jsonl"])
def test_a_folder_of_several_splits(write, read, refusal, held_out, other):
    """A folder of several splits is refused until the source selects a split or excludes files."""
    write(**{f"in/{other}": RECORD, f"in/{held_out}": RECORD.replace(b'"x"', b'"held out"')})
    message = refusal(jsonl("in"))
    assert f"({held_out})" in message
    assert f"({other})" in message
    assert "set split: train" in message
    for chosen in ({"split": "train"}, {"exclude": [held_out]}, {"exclude": [Path(held_out).name]}):
        assert read(jsonl("in", **chosen)).records == ["x"]
    assert sorted(read(jsonl("in", split="all")).records) == ["held out", "x"]
    split = split_of(held_out)
    assert read(jsonl("in", split=split)).records == ["held out"]
    other_split = {"test": "validation", "validation": "test"}[split]
    assert "no file in the folder belongs to split" in refusal(jsonl("in", split=other_split))


def test_a_folder_of_one_split(write, read):
    """A folder with only test files is read, and a folder named test does not
    count as a mixture of splits.
    """
    write(**{"test/a.jsonl": RECORD, "in/test-1.jsonl": RECORD, "in/test-2.jsonl": RECORD})
    assert read(jsonl("test")).records == ["x"]
    assert read(jsonl("in")).records == ["x", "x"]


def test_choosing_among_nothing(write, refusal, caplog):
    """`split` is refused for a single file; patterns in `exclude` that match all
    files or none are reported.
    """
    write(**{"in/a.jsonl": RECORD})
    assert refusal(jsonl("in/a.jsonl", split="train")).endswith("is a file. Remove split.")
    assert refusal(jsonl("in", exclude=["*.jsonl"])).endswith(
        "exclude matches every file in the folder (1). Change exclude."
    )
    open_source(jsonl("in", exclude=["b*"]), "here").check_dependencies()
    assert caplog.messages == ["here: exclude: 'b*' matches no file in the folder."]
