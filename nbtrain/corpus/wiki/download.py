"""Downloads a Wikipedia dump: finds it in the mirror's list of checksums, resumes, and verifies the result.

    <mirror>/<wiki>/<date>/<wiki>-<date>-sha1sums.txt   names, with the date, and checksums of a dump's files
    <name>.part, <name>.part.json                       the bytes received so far, and the ETag they belong to
    <name>, <name>.json                                 the complete, verified file, and its source

After a lost connection, the download resumes after the last received byte (Range, If-Range): a few times
within one call, and at any time in a later call. If the file has changed on the server, the download starts
over.
"""

import contextlib
import fcntl
import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.corpus.http import Downloaded, MirrorClient, folder
from nbtrain.corpus.partial_file import READ_BYTES

logger = logging.getLogger(__name__)

# Kinds of dump, the preferred one first: multistream dumps consist of streams of a hundred pages each, which
# can be read in parallel.
KINDS = ("pages-articles-multistream", "pages-articles")

# Languages for which the name of the wiki's database differs from the language code.
OTHER_NAMES = """
be-tarask=be_x_old gsw=als lzh=zh_classical nan=zh_min_nan nb=no rup=roa_rup sgs=bat_smg vro=fiu_vro
yue=zh_yue
"""
DATABASES = dict(pair.split("=") for pair in OTHER_NAMES.split())


def database(language: str) -> str:
    """Return the database name of a language: enwiki for en, zh_min_nanwiki for zh-min-nan."""
    return DATABASES.get(language, language.replace("-", "_")) + "wiki"


def recorded_dump(language: str, date: str, sha1: str | None = None) -> Downloaded | None:
    """Return the record of a downloaded dump, even if its file is gone; None if it was not downloaded.

    The date "latest" means the dump that was the latest when it was downloaded. If both kinds of dump were
    downloaded, the one with `sha1` is returned, otherwise the multistream dump.
    """
    records = _records(language, date)
    return min(records, key=lambda record: record.sha1 != sha1, default=None)


def find(language: str, date: str, sha1: str | None = None) -> Downloaded | None:
    """Return the dump that recorded_dump() finds, if its file is complete and on disk; otherwise None."""
    record = recorded_dump(language, date, sha1)
    path = None if record is None else folder() / record.file
    return record if record and path and path.is_file() and path.stat().st_size == record.bytes else None


def _records(language: str, date: str) -> list[Downloaded]:
    wiki = database(language)
    if date == "latest":
        pinned = files.read_json(folder() / f"{wiki}-latest.json")
        if pinned is None:
            return []
        date = pinned["date"]
    found = (files.read_json(folder() / f"{wiki}-{date}-{kind}.xml.bz2.json") for kind in KINDS)
    return [Downloaded(**record) for record in found if record is not None]


def download(language: str, date: str, mirror: str, sha1: str | None, where: str) -> tuple[Downloaded, bool]:
    """Return (the dump, whether it was downloaded now). A dump on disk is used, even for the date "latest".

    Raises DataError for an invalid address, disk errors, connection failures and a wrong checksum; messages
    begin with `where`.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with locked(folder() / f".{database(language)}.lock", where):
            found = find(language, date, sha1)
            if found is not None and sha1 in (None, found.sha1):
                return found, False
            fetch = MirrorClient(mirror, where)
            name, dump_date, listed = _choose(fetch, language, date, sha1)
            is_new = (found := find(language, dump_date, listed)) is None or found.sha1 != listed
            if found is None or is_new:
                found = fetch.dump(f"{database(language)}/{dump_date}/{name}", name, dump_date, listed)
            if date == "latest":
                files.write_json(folder() / f"{database(language)}-latest.json", {"date": dump_date})
            return found, is_new
    except OSError as error:
        raise DataError(
            f"{where}: {display(Path(error.filename or folder()))}: {error.strerror or error}. The received "
            "bytes are kept. Free up space or correct the permissions, or set NBTRAIN_DATA to a folder on "
            "another disk, then run the command again."
        ) from error


def check_sha1(path: Path, sha1: str, where: str) -> bool:
    """Compare the SHA-1 of a dump at the user's path with the setting sha1.

    Returns True if the SHA-1 was computed now, False if an earlier call has verified the unchanged file.

    Raises DataError if the SHA-1 differs.
    """
    stat = path.stat()
    note = folder() / f"{path.name}.checked.json"
    checked = {"path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha1": sha1}
    if files.read_json(note) == checked:
        return False
    digest = hashlib.sha1(usedforsecurity=False)
    with path.open("rb") as stream, Progress(f"SHA-1 of {path.name}", stat.st_size, "B") as progress:
        while content := stream.read(READ_BYTES):
            digest.update(content)
            progress.update(len(content))
    if digest.hexdigest() != sha1:
        raise DataError(
            f"{where}: {display(path)}: its SHA-1 is {digest.hexdigest()}, but the setting sha1 is {sha1}. "
            "Download the file again, or correct sha1."
        )
    folder().mkdir(parents=True, exist_ok=True)
    files.write_json(note, checked)
    return True


@contextlib.contextmanager
def locked(path: Path, where: str) -> Iterator[None]:
    """Hold the lock for downloads of one Wikipedia. Raises DataError if the lock cannot be acquired."""
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = (
                f"another process is downloading this Wikipedia into {display(folder())}. Wait until it has "
                "finished, then run the command again."
            )
            raise DataError(f"{where}: {what}") from None
        except OSError as error:
            raise DataError(
                f"{where}: {display(path)}: the file system does not support file locks ({error.strerror}), "
                f"so two processes could write the same dump. Set NBTRAIN_DATA to a folder on another disk."
            ) from error
        yield


def _choose(fetch: MirrorClient, language: str, date: str, sha1: str | None) -> tuple[str, str, str]:
    """Return (name, date, SHA-1) of the dump to download: the one with `sha1`, if it is given.

    Without `sha1`, a multistream dump is preferred, because it can be read in parallel. Raises DataError if
    the mirror has no such dump.
    """
    wiki = database(language)
    address = f"{wiki}/{date}/{wiki}-{date}-sha1sums.txt"
    listed: dict[str, str] = {}
    for line in fetch.text(address).splitlines():
        if match := re.fullmatch(r"([0-9a-f]{40})[ *]+([A-Za-z0-9_.-]+)", line.strip()):
            listed[match[2]] = match[1]
    newest_of_kinds: list[tuple[str, str, str]] = []
    for kind in KINDS:
        pattern = re.compile(rf"{re.escape(wiki)}-([0-9]{{8}})-{kind}\.xml\.bz2")
        matches = [match for name in listed if (match := pattern.fullmatch(name))]
        newest = max((m for m in matches if date in ("latest", m[1])), key=lambda m: m[1], default=None)
        if newest is not None:
            newest_of_kinds.append((newest[0], newest[1], listed[newest[0]]))
    for found in newest_of_kinds:
        if sha1 in (None, found[2]):
            return found
    if newest_of_kinds:
        lists = " and ".join(f"{found} for {name}" for name, _, found in newest_of_kinds)
        raise DataError(
            f"{fetch.where}: sha1 = {sha1}, but {fetch.printable(address)} lists {lists}. Correct sha1, or "
            f"set date to the date of the dump with this sha1."
        )
    raise DataError(
        f"{fetch.where}: {fetch.printable(address)} lists {counted(len(listed), 'file')}, but no "
        f"{wiki}-YYYYMMDD-pages-articles.xml.bz2: the dump may not be finished yet. Set date to an earlier "
        "date."
    )
