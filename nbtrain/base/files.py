"""Atomic writing of files: a half-written file is never mistaken for a complete one."""

import contextlib
import errno
import json
import os
import pwd
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nbtrain.base.errors import RecordError
from nbtrain.base.git_lfs import pointer_problem

# Part of a job's cause if its run directory has become read-only.
READ_ONLY = "on a read-only disk"
# File systems that are mounted on this machine.
MOUNTS = Path("/proc/mounts")
# A record is replaced once a second and read within milliseconds, so more failures in a row have another
# cause.
STALE_TRIES = 5
# Errors of write() and fsync(), which do not name the file: no space, quota, file too large, read-only disk.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_read_only(folder: Path) -> bool:
    """Return whether the file system that holds a folder is mounted read-only."""
    # For root, access() succeeds even on a read-only mount.
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent, that exists. It may be a file or a broken link."""
    return next(found for found in (path, *path.parents) if os.path.lexists(found))


def file_system_of(folder: Path) -> str | None:
    """Return the type of the file system that holds a folder. None if /proc/mounts cannot be read."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path, best, kind = str(folder.resolve()), "", None
    for line in lines:
        _, point, found, *_ = line.split(" ")
        # Spaces in a mount point are written as octal escapes.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of several mounts at the same point, the last one is visible.
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` as the file name to an OSError in NO_ROOM that the block raises without a file name."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def atomic_writer(path: Path, mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file next to `path`; on success fsync it and rename it to `path`.

    On any exception the temporary file is removed and `path` is left as it was.
    """
    path = Path(path)
    temporary = _temporary(path)
    encoding = None if "b" in mode else "utf-8"
    try:
        with naming(path), temporary.open(mode, encoding=encoding) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _temporary(path: Path) -> Path:
    """Return a new name next to `path`.

    The dot hides it from globs such as `*.json`. The random part keeps writers apart: processes, threads of
    one process, and processes of two hosts with the same ID.
    """
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")


def fsync_directory(directory: Path) -> None:
    """Make a rename inside `directory` survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(stream: IO) -> None:
    """Flush the content of an open file to the disk, including data that other processes wrote."""
    os.fsync(stream.fileno())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a complete file atomically."""
    with atomic_writer(path) as stream:
        stream.write(content)


def write_text(path: Path, content: str) -> None:
    """Write a complete UTF-8 file atomically."""
    write_bytes(path, content.encode())


def write_output(path: Path, content: str) -> None:
    """Write a file that the user has named.

    The file is written atomically. A symbolic link is followed to its target, and a device is written
    directly.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as stream:
            stream.write(content)
    else:
        write_text(Path(os.path.realpath(path)), content)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return indented JSON with a line end, which is the format of all JSON files that nbtrain writes."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json_unsynced(path: Path, value: Any) -> None:
    """Write JSON by rename but without fsync, for records that are renewed every second (heartbeats).

    A reader never sees half a record. After a power failure, the file may be empty or hold NULs (XFS), so it
    must be read with read_json_unsynced().
    """
    path = Path(path)
    temporary = _temporary(path)
    try:
        with naming(path):
            temporary.write_text(json.dumps(value))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json_unsynced(path: Path) -> Any | None:
    """Read a file that write_json_unsynced() wrote.

    Like read_json(), but also return None if a power failure left the file empty.
    """
    content = _read_bytes(path)
    return _json_value(path, content) if content and content.strip(b"\0 \n") else None


def read_json(path: Path) -> Any | None:
    """Return the JSON value of a file, or None if it does not exist.

    Raises RecordError (a ValueError), which names the file, if the file may not be read or is not JSON.
    """
    content = _read_bytes(path)
    return None if content is None else _json_value(path, content)


def _read_bytes(path: Path) -> bytes | None:
    try:
        return read_current(Path(path))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise RecordError(f"{not_allowed(error)}.") from error
    except IsADirectoryError as error:
        raise RecordError(f"{path}: is a folder, but must be a file.") from error


def read_current(path: Path, offset: int = 0) -> bytes:
    """Read a file from an offset on.

    If NFS 3 fails because another host has just replaced the file, the file is opened again.
    """
    for _ in range(STALE_TRIES - 1):
        try:
            return _read_from(path, offset)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _read_from(path, offset)


def _read_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read()


def _json_value(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecordError(f"{path}:{line}: not JSON: byte {error.start + 1} is not UTF-8") from error
    except json.JSONDecodeError as error:
        if problem := pointer_problem(content):
            raise RecordError(f"{path}: {problem}") from error
        what = f"{error.msg.removesuffix(' at')} (column {error.colno})"
        raise RecordError(f"{path}:{error.lineno}: not JSON: {what}") from error
    except RecursionError as error:
        raise RecordError(f"{path}:1: not JSON: objects and lists are nested too deeply") from error
    except ValueError as error:  # an integer that is too long for Python, without a position
        raise RecordError(f"{path}: {too_many_digits()}") from error


def too_many_digits() -> str:
    """Return the message for JSON with an integer that is too long for Python.

    For such JSON, json.loads raises a plain ValueError.
    """
    return (
        f"a whole number has more than {sys.get_int_max_str_digits():,} digits, which Python does not parse"
    )


def not_allowed(error: OSError) -> str:
    """Return why the system refused access to a file, and who owns it.

    For example "PATH: Permission denied; it belongs to ada".
    """
    said = error.strerror or type(error).__name__
    if not error.filename:
        return said
    # The owner of a file in an inaccessible folder cannot be seen; the folder's owner is reported instead.
    for path in (Path(os.fsdecode(error.filename)), *Path(os.fsdecode(error.filename)).parents):
        with contextlib.suppress(OSError):
            return f"{error.filename}: {said}; {_whose(path, str(path) == str(error.filename))}"
    return f"{error.filename}: {said}"


def _whose(path: Path, itself: bool) -> str:
    return f"{'it' if itself else path} belongs to {user_name(path.lstat().st_uid)}"


def user_name(uid: int) -> str:
    """Return the name of a user; "user 1234" if this machine does not know the id."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    # Imported here, because half of the commands do not hash anything.
    import hashlib

    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
