"""Atomic writes: a file is either complete or absent."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.errors import RecordError


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path):
    """An exception inside the writer changes nothing on the disk."""
    target = tmp_path / "a.json"
    files.write_text(target, "old")
    with pytest.raises(RuntimeError), files.atomic_writer(target) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    """ENOSPC at fsync is an error that names the file; the old content remains, without a temporary file."""
    target = tmp_path / "a.json"
    files.write_json(target, {"step": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"):
        files.write_json(target, {"step": 2})
    assert files.read_json(target) == {"step": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_named_output_keeps_links_and_devices(tmp_path):
    """write_output() writes to an existing pipe, and replaces the target of a link while keeping the link."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_output(pipe, "text")
        assert os.read(reader, 100) == b"text" and pipe.is_fifo()
    finally:
        os.close(reader)
    link.symlink_to("target")
    for before in (None, "before"):
        target.write_text(before) if before else target.unlink(missing_ok=True)
        files.write_output(link, "text")
        assert link.is_symlink() and target.read_text() == "text"
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "target"]


@pytest.mark.parametrize(
    ("code", "times", "fails"), [("ESTALE", 4, False), ("ESTALE", 5, True), ("EIO", 1, True)]
)
def test_a_file_that_another_host_replaces_is_opened_again(tmp_path, monkeypatch, code, times, fails):
    """ESTALE of NFS 3 is retried a few times and then raised; other errors are raised immediately."""
    path = tmp_path / "0.json"
    files.write_json(path, {"step": 1})
    refused, opened = [getattr(errno, code)] * times, Path.open

    def open_(self, *arguments):
        if refused:
            raise OSError(refused.pop(), code, str(self))
        return opened(self, *arguments)

    monkeypatch.setattr(Path, "open", open_)
    if fails:
        with pytest.raises(OSError, match=code):
            files.read_json(path)
    else:
        assert files.read_json(path) == {"step": 1}


def test_reading_json_tells_missing_from_broken(tmp_path):
    """A missing JSON file returns None, and a truncated one is an error that names the file."""
    assert files.read_json(tmp_path / "none.json") is None
    with pytest.raises(RecordError, match="is a folder, but must be a file"):
        files.read_json(tmp_path)
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": ')
    with pytest.raises(ValueError, match=r"broken\.json:1: not JSON"):
        files.read_json(broken)
    broken.write_text("[" * 100_000)
    with pytest.raises(
        RecordError, match=r"broken\.json:1: not JSON: objects and lists are nested too deeply"
    ):
        files.read_json(broken)
    broken.write_bytes('{"a": "ä",\n"b": "'.encode() + b'\xe9"}')
    with pytest.raises(RecordError, match=r"broken\.json:2: not JSON: byte 19 is not UTF-8$"):
        files.read_json(broken)
    broken.write_text('{"a": %s}' % ("9" * 4301))
    with pytest.raises(
        RecordError,
        match=r"broken\.json: a whole number has more than 4,300 digits, which Python does not parse$",
    ):
        files.read_json(broken)


def test_two_threads_that_write_one_record_leave_a_whole_one(tmp_path):
    """Two threads that write a short and a long value to one file at the same time leave one of them,
    complete.
    """
    target, values = tmp_path / "engine.json", ({"said": ""}, {"said": "x" * 5000})
    files.write_json_unsynced(target, values[0])
    with ThreadPoolExecutor(2) as threads:
        writers = [
            threads.submit(lambda value=value: [files.write_json_unsynced(target, value) for _ in range(60)])
            for value in values
        ]
        while not all(writer.done() for writer in writers):
            assert files.read_json_unsynced(target) in values
        for writer in writers:
            writer.result()
    assert os.listdir(tmp_path) == ["engine.json"]


def test_the_file_system_of_a_folder_is_that_of_the_deepest_mount(monkeypatch, tmp_path):
    """The deepest mount point above a folder determines its file system; octal escapes in mount points are
    decoded.
    """
    mounts = tmp_path / "mounts"
    inside = tmp_path / "a disk"
    inside.mkdir()
    beside = tmp_path / "a disk 2"
    beside.mkdir()
    point = str(inside).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nhost:/x {point} nfs rw 0 0\n")
    monkeypatch.setattr(files, "MOUNTS", mounts)
    assert files.file_system_of(inside) == "nfs"
    assert files.file_system_of(beside) == "ext4"
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "none")
    assert files.file_system_of(inside) is None
