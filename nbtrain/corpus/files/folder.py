"""Lists the files of a folder safely, even if it contains links, link loops, unreadable files or pipes.

No file that may hold text is skipped silently: anything unreadable raises a DataError that names it.
"""

import errno
import heapq
import os
import stat
from collections.abc import Callable
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display

IRREGULAR = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def listed_files(root: Path, is_wanted: Callable[[str], bool], where: str) -> tuple[list[str], list[str]]:
    """Return (the files below `root` whose name is wanted, all other files) as sorted relative paths.

    Hidden files are omitted, and links are followed. Each folder is read once: under its own name if it is
    below `root`, otherwise under the first link to it. Raises DataError for a folder that cannot be read, and
    for a wanted file that is a dangling link, not a regular file, or whose name is not UTF-8.
    """
    wanted: list[str] = []
    others: list[str] = []
    seen: set[tuple[int, int] | str] = set()
    links = [""]
    while links:
        folders = [heapq.heappop(links)]
        while folders:
            folder = folders.pop()
            path = root / folder
            try:
                here = path.stat()
                with os.scandir(path) as listed:
                    # Sort by name, so that the choice among several links does not depend on the file system.
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError as error:
                raise unreadable(path, error, where) from error
            # File systems without inode numbers report 0 for every file.
            identity = (here.st_dev, here.st_ino) if here.st_ino else os.path.realpath(path)
            if identity in seen:
                continue
            seen.add(identity)
            for entry in entries:
                # Hidden files are copies and leftovers from editors, Jupyter and download tools.
                if entry.name.startswith("."):
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_symlink() and _leads_to_folder(root / name, is_wanted(entry.name), where):
                    heapq.heappush(links, name)
                elif not is_wanted(entry.name):
                    others.append(name)
                elif entry.is_symlink() or is_file(root / name, where):
                    wanted.append(name)
    for name in wanted:
        check_name(root / name, where)
    return sorted(wanted), sorted(others)


def status(path: Path, where: str) -> os.stat_result | None:
    """Return os.stat() of a path, following links; None if nothing exists there.

    Raises DataError if the status cannot be determined.
    """
    try:
        return path.stat()
    except ValueError:  # a null byte
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise unreadable(path, error, where) from error


def is_folder(path: Path, where: str) -> bool:
    """Return whether a path is a folder. Raises DataError if that cannot be determined."""
    found = status(path, where)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: Path, where: str) -> bool:
    """Return whether a path is a regular file.

    Raises DataError for a pipe, socket or device, or if the status cannot be determined.
    """
    found = status(path, where)
    if found is None:
        return False
    kind = IRREGULAR.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise DataError(
            f"{where}: {printable_path(path)}: this is not a regular file but {kind}, and sources are read "
            "several times and from any position. Write the content to a file, and set the path to that "
            "file."
        )
    return stat.S_ISREG(found.st_mode)


def check_name(path: Path, where: str) -> None:
    """Raise DataError if a path is not UTF-8, because records and manifests could not store it."""
    if printable_path(path) != display(path):
        raise DataError(
            f"{where}: {printable_path(path)}: the name is not UTF-8, but manifests store the names of a "
            f"source's files as UTF-8. Rename the file."
        )


def dangling(path: Path, where: str) -> DataError:
    """Return the error for a dangling link."""
    return DataError(
        f"{where}: {printable_path(path)}: this is a link to {str(path.readlink())!a}, which does not exist. "
        f"Create that file, or remove the link."
    )


def unreadable(path: Path, error: OSError, where: str) -> DataError:
    """Return the error for a path that this process may not read."""
    # Arrow's strerror is a sentence that contains the whole path.
    reason = error.strerror if error.errno is None else os.strerror(error.errno)
    return DataError(f"{where}: {printable_path(path)}: cannot be read: {reason}.")


def printable_path(path: Path) -> str:
    """Return a path for messages; a path that is not UTF-8 is escaped and quoted."""
    name = display(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        return ascii(name)
    return name


def _leads_to_folder(link: Path, is_wanted: bool, where: str) -> bool:
    """Return whether a link leads to a folder. Raises DataError for a dangling link with a wanted name."""
    found = status(link, where)
    if found is None:
        if is_wanted:
            raise dangling(link, where)
        return False
    return stat.S_ISDIR(found.st_mode) or (is_wanted and not is_file(link, where))
