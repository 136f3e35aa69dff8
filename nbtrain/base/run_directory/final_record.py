"""Final job.json of a job whose run directory can no longer be written, kept in a folder of the user.

<temporary folder>/nbtrain-<user id>/ is created for the user only (mode 700). It is not used if it belongs to
another user, if others may read or write it, or if it is a link, because any user can create a name in
advance in a folder to which all users may write.
"""

import contextlib
import os
import stat
from pathlib import Path

from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.records import JobRecord


def keep(record: JobRecord) -> Path | None:
    """Write the job's record to the user's temporary folder and return its path. None if that fails too."""
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(folder):
            record.write(path := folder / _name(record))
            return path
    return None


def read(record: JobRecord) -> JobRecord | None:
    """Return the final record of the job that `record` describes. None if there is none."""
    folder = _folder()
    if not _is_ours(folder):
        return None
    try:
        found = JobRecord.read(folder / _name(record))
    except (OSError, RecordError):
        return None
    same = found is not None and (found.run_id, found.job_id) == (record.run_id, record.job_id)
    return found if same else None


def forget(record: JobRecord) -> None:
    """Remove the final record of a job, because a newer job of its run has begun."""
    if _is_ours(_folder()):
        (_folder() / _name(record)).unlink(missing_ok=True)


def _folder() -> Path:
    # Imported here, as hashlib below: nearly every command loads this file, and few of them need the folder.
    import tempfile

    return Path(tempfile.gettempdir()) / f"nbtrain-{os.getuid()}"


def _name(record: JobRecord) -> str:
    import hashlib

    # A hash, because ids come from a file that anyone may have written, and must not become a path.
    return hashlib.sha256(f"{record.run_id}/{record.job_id}".encode()).hexdigest()[:32] + ".json"


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
