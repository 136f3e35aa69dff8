"""Fetch a Wikipedia dump: found by the mirror's own list of checksums, resumed, verified, and only then named.

    <mirror>/<wiki>/<date>/<wiki>-<date>-sha1sums.txt     names the files of a dump; "latest" names dated ones too
    <name>.part, <name>.part.json                         what has come, and the ETag that it belongs to
    <name>, <name>.json                                   whole, its SHA-1 as listed; and where it is from

A cut connection is taken up again where it broke (Range, If-Range), a few times in one call and at any time in a
later one. What has changed on the server in the meantime starts from nothing.
"""

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import logging
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import nbtrain
from nbtrain import files
from nbtrain.addresses import redacted
from nbtrain.amounts import size
from nbtrain.errors import DataError
from nbtrain.progress import Progress
from nbtrain.workspace import data_home, display

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60.0
ATTEMPTS = 6
"""Tries in a row that bring nothing new, before an error."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
READ_BYTES = 1 << 20
LIST_BYTES = 4 << 20
SPARE_BYTES = 256 << 20
"""Left free on the disk besides the dump."""

# Streams of a hundred pages each are read in parallel: chosen where there is a choice.
KINDS = ("pages-articles-multistream", "pages-articles")

# Codes of languages that are not how the wiki's database is called.
DATABASES = {
    "be-tarask": "be_x_old",
    "gsw": "als",
    "lzh": "zh_classical",
    "nan": "zh_min_nan",
    "nb": "no",
    "rup": "roa_rup",
    "sgs": "bat_smg",
    "vro": "fiu_vro",
    "yue": "zh_yue",
}


@dataclass(frozen=True)
class Downloaded:
    """A dump on this disk: <name>.json beside it."""

    file: str
    date: str
    """YYYYMMDD, also where "latest" was asked for."""
    url: str
    """Without secrets."""
    sha1: str
    bytes: int


def database(language: str) -> str:
    """en: enwiki; zh-min-nan: zh_min_nanwiki."""
    return DATABASES.get(language, language.replace("-", "_")) + "wiki"


def folder() -> Path:
    """Where downloads lie: data/download/."""
    return data_home() / "download"


def known(language: str, date: str) -> Downloaded | None:
    """The dump of this language and date that was fetched into this data home; its file may be gone since.

    "latest" is the one that it was when it was asked for, so that a dataset stays what it is.
    """
    wiki = database(language)
    if date == "latest":
        pinned = files.read_json(folder() / f"{wiki}-latest.json")
        if pinned is None:
            return None
        date = pinned["date"]
    for kind in KINDS:
        record = files.read_json(folder() / f"{wiki}-{date}-{kind}.xml.bz2.json")
        if record is not None:
            return Downloaded(**record)
    return None


def find(language: str, date: str) -> Downloaded | None:
    """The same where its file is on this disk, whole."""
    record = known(language, date)
    if record is not None:
        whole = folder() / record.file
        if whole.is_file() and whole.stat().st_size == record.bytes:
            return record
    return None


def download(language: str, date: str, mirror: str, sha1: str | None, where: str) -> tuple[Downloaded, bool]:
    """(the dump, whether it was fetched now). What is there is kept: "latest" is asked for once.

    `where` begins every message. Raises DataError: nothing under this address, a full disk, a connection that keeps
    breaking, a wrong checksum.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _locked(folder() / f".{database(language)}.lock", where):
            found = find(language, date)
            if found is not None and sha1 in (None, found.sha1):
                return found, False
            fetch = _Fetch(mirror, where)
            name, dump_date, listed = _choose(fetch, language, date, sha1)
            is_new = (found := find(language, dump_date)) is None or found.sha1 != listed
            if found is None or is_new:
                found = fetch.dump(f"{database(language)}/{dump_date}/{name}", name, dump_date, listed)
            if date == "latest":
                files.write_json(folder() / f"{database(language)}-latest.json", {"date": dump_date})
            return found, is_new
    except OSError as error:
        raise _disk_error(error, where) from error


def check_sha1(path: Path, sha1: str, where: str) -> bool:
    """Compare a brought file with the source's sha1; False where that was done before. Raises DataError."""
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
            f"{where}: {display(path)}: its SHA-1 is {digest.hexdigest()}, sha1 says {sha1}. Fetch the file again, or "
            "correct sha1."
        )
    folder().mkdir(parents=True, exist_ok=True)
    files.write_json(note, checked)
    return True


@contextlib.contextmanager
def _locked(path: Path, where: str) -> Iterator[None]:
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(
                f"{where}: another process is downloading this Wikipedia into {display(folder())}. Wait for it."
            ) from None
        yield


def _disk_error(error: OSError, where: str) -> DataError:
    what = error.strerror or str(error)
    return DataError(
        f"{where}: {display(Path(error.filename or folder()))}: {what}. What has come is kept: free space, or set "
        "NBTRAIN_DATA to a folder on another disk, and run it again."
    )


# --- which file ---------------------------------------------------------------------------------------------


def _choose(fetch: "_Fetch", language: str, date: str, sha1: str | None) -> tuple[str, str, str]:
    """(name, date, SHA-1) of the dump: multistream, which is read in parallel, before the plain one."""
    wiki = database(language)
    address = f"{wiki}/{date}/{wiki}-{date}-sha1sums.txt"
    listed: dict[str, str] = {}
    for line in fetch.text(address).splitlines():
        if match := re.fullmatch(r"([0-9a-f]{40})[ *]+([A-Za-z0-9_.-]+)", line.strip()):
            listed[match[2]] = match[1]
    for kind in KINDS:
        pattern = re.compile(rf"{re.escape(wiki)}-([0-9]{{8}})-{kind}\.xml\.bz2")
        matches = [match for name in listed if (match := pattern.fullmatch(name))]
        matches = [match for match in matches if date in ("latest", match[1])]
        if not matches:
            continue
        newest = max(matches, key=lambda match: match[1])
        found = listed[newest[0]]
        if sha1 not in (None, found):
            raise DataError(
                f"{fetch.where}: sha1 = {sha1}, but {fetch.shown(address)} lists {found} for {newest[0]}. Correct sha1, or "
                "set date to the dump it belongs to."
            )
        return newest[0], newest[1], found
    raise DataError(
        f"{fetch.where}: {fetch.shown(address)} lists no {wiki}-YYYYMMDD-pages-articles.xml.bz2 ({len(listed)} files): the "
        "dump may not be finished yet. Set date to an earlier one."
    )


# --- HTTP ---------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """To http and https only, never from https to http; a password does not travel to another host."""

    max_redirections = 5

    def redirect_request(self, request, stream, code, message, headers, address):
        before, after = urlsplit(request.full_url), urlsplit(address)
        if after.scheme not in ("http", "https") or (before.scheme == "https" and after.scheme == "http"):
            raise urllib.error.HTTPError(request.full_url, code, message, headers, stream)
        following = super().redirect_request(request, stream, code, message, headers, address)
        if following is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            following.remove_header("Authorization")
        return following


class _Fetch:
    """Requests below one mirror. Messages show addresses without their secrets."""

    def __init__(self, mirror: str, where: str):
        self.where = where
        try:
            parts = urlsplit(mirror)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or re.search(r"[\s\x00-\x1f\x7f]", mirror):
            raise DataError(
                f"{where}: mirror = {redacted(mirror)!r} must begin with https:// or http:// and name a host."
            )
        self._parts = parts
        # http and https only: urllib's default set also opens files and FTP.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(),
        ):
            self._opener.add_handler(handler)

    def url(self, address: str) -> str:
        """The address below the mirror, with the mirror's query but without its password."""
        host = self._parts.netloc.rpartition("@")[2]
        path = f"{self._parts.path.rstrip('/')}/{address}"
        return urlunsplit((self._parts.scheme, host, path, self._parts.query, ""))

    def shown(self, address: str) -> str:
        return redacted(self.url(address))

    def open(self, address: str, headers: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            self.url(address),
            headers={
                "User-Agent": f"nbtrain/{nbtrain.__version__} (urllib)",
                "Accept-Encoding": "identity",
                **(headers or {}),
            },
        )
        if self._parts.username is not None:
            secret = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
            request.add_header("Authorization", f"Basic {b64encode(secret.encode()).decode()}")
        return self._opener.open(request, timeout=TIMEOUT_SECONDS)

    def text(self, address: str) -> str:
        """A small file. Raises DataError."""
        retry = _Retry(self, address)
        while True:
            try:
                with self.open(address) as response:
                    content = response.read(LIST_BYTES)
                    if response.length:
                        raise http.client.IncompleteRead(content, response.length)
                    return content.decode(errors="replace")
            except (OSError, http.client.HTTPException) as error:
                retry.after(error)

    def dump(self, address: str, name: str, date: str, sha1: str) -> Downloaded:
        """Fetch one file under its name. Raises DataError."""
        part = _Part(folder() / f"{name}.part", sha1)
        retry = _Retry(self, address)
        with contextlib.ExitStack() as stack:
            progress: Progress | None = None
            while not part.complete:
                before = part.bytes
                try:
                    with self.open(address, part.range_headers()) as response:
                        part.begin(response)
                        if progress is None:
                            self._check_space(part)
                            progress = stack.enter_context(Progress(name, part.total, "B"))
                        progress.update(part.bytes - progress.done)
                        for amount in part.receive(response):
                            progress.update(amount)
                    if not part.complete:
                        raise ConnectionError(f"cut off after {part.bytes:,} of {part.total or 0:,} bytes")
                except urllib.error.HTTPError as error:
                    if error.code == 416 and before:
                        error.close()
                        part.restart()  # the file became shorter than what is here
                        continue
                    retry.after(error)
                except (OSError, http.client.HTTPException) as error:
                    if isinstance(error, OSError) and error.errno in (
                        errno.ENOSPC,
                        errno.EDQUOT,
                        errno.EFBIG,
                    ):
                        raise
                    if part.bytes > before:
                        retry.reset()
                    retry.after(error)
        found = part.sha1()
        if found != sha1:
            part.remove()
            raise DataError(
                f"{self.where}: {self.shown(address)}: its SHA-1 is {found}, the dump's list says {sha1}. The download is "
                "removed; run it again, and if it fails again set mirror to another server or date to another dump."
            )
        record = Downloaded(name, date, self.shown(address), sha1, part.bytes)
        files.write_json(folder() / f"{name}.json", asdict(record))
        part.finish(folder() / name)
        return record

    def _check_space(self, part: "_Part") -> None:
        free = shutil.disk_usage(folder()).free
        missing = (part.total or 0) - part.bytes
        if free < missing + SPARE_BYTES:
            raise DataError(
                f"{self.where}: {display(folder())}: {size(missing)} are still to come and {size(SPARE_BYTES)} stay free, but "
                f"{size(free)} are free. Free space, or set NBTRAIN_DATA to a folder on another disk."
            )


class _Retry:
    """Whether and when to try again: a broken connection and a busy server, not a wrong address."""

    def __init__(self, fetch: _Fetch, address: str):
        self._fetch, self._address = fetch, address
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def after(self, error: Exception) -> None:
        """Wait, or raise DataError."""
        shown, where = self._fetch.shown(self._address), self._fetch.where
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer itself
        reason = _reason(error)
        if isinstance(error, urllib.error.HTTPError) and error.code not in (
            408,
            425,
            429,
            500,
            502,
            503,
            504,
        ):
            fix = (
                "Set language, date or mirror: the dump is not there."
                if error.code in (404, 410)
                else "Set mirror."
            )
            raise DataError(f"{where}: {shown}: {reason}. {fix}") from None
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise DataError(
                f"{where}: {shown}: {reason}. Set mirror to a server whose certificate is known here, or have SSL_CERT_FILE "
                "name the certificates to trust."
            ) from None
        self._failures += 1
        if self._failures >= ATTEMPTS:
            raise DataError(
                f"{where}: {shown}: {reason}; {ATTEMPTS} tries in a row brought nothing. What has come is kept: run it again, "
                "or set mirror to another server."
            ) from None
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (self._failures - 1))
        if isinstance(error, urllib.error.HTTPError):
            asked = error.headers.get("Retry-After", "")
            wait = min(LONGEST_WAIT_SECONDS, max(wait, float(asked))) if asked.isdigit() else wait
        logger.warning("%s: %s; trying again in %.0f s.", shown, reason, wait)
        time.sleep(wait)


def _reason(error: Exception) -> str:
    """In words, without the address, which may hold secrets."""
    if isinstance(error, urllib.error.HTTPError):
        if 300 <= error.code < 400:
            # urllib's own words hold the address.
            return f"HTTP {error.code}: a redirect that is not followed: more than 5, not to http(s), or from https to http"
        return f"HTTP {error.code} {error.msg}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else ConnectionError(str(error.reason))
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_SECONDS:.0f} s"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


# --- what has come ------------------------------------------------------------------------------------------


class _Part:
    """<name>.part, the ETag beside it, and the running SHA-1."""

    def __init__(self, path: Path, sha1: str):
        self.path = path
        self._json = path.with_name(path.name + ".json")
        self.total: int | None = None
        self.bytes = 0
        self._digest = hashlib.sha1(usedforsecurity=False)
        self._validator: str | None = None
        note = _note(self._json)
        if note is not None and note.get("sha1") == sha1 and path.is_file():
            self._validator, self.total = note["validator"], note["total"]
            with path.open("rb") as stream:
                while content := stream.read(READ_BYTES):
                    self._digest.update(content)
                    self.bytes += len(content)
        self._sha1 = sha1

    @property
    def complete(self) -> bool:
        return self.total is not None and self.bytes == self.total

    def range_headers(self) -> dict[str, str]:
        """Ask for the rest, provided that the file is still the same."""
        if not self.bytes:
            return {}
        headers = {"Range": f"bytes={self.bytes}-"}
        if self._validator:
            headers["If-Range"] = self._validator
        return headers

    def begin(self, response: Any) -> None:
        """Read the answer's headers: the rest, or everything."""
        # Only a strong ETag promises the same bytes.
        tag = response.headers.get("ETag", "")
        validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
        if response.status == 206:
            match = re.fullmatch(
                r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", response.headers.get("Content-Range", "")
            )
            same = self._validator is None or validator in (None, self._validator)
            if (
                not match
                or int(match[1]) != self.bytes
                or not same
                or self.total not in (None, int(match[3]))
            ):
                # It answered another range than was asked for, or of another file.
                self.restart()
                raise ConnectionError("the file has changed on the server; it starts from nothing")
            self.total = int(match[3])
            return
        self.restart()
        length = response.headers.get("Content-Length", "")
        self.total = int(length) if length.isdigit() else None
        self._validator = validator
        files.write_json(self._json, {"sha1": self._sha1, "validator": self._validator, "total": self.total})

    def receive(self, response: Any) -> Iterator[int]:
        """Append what comes; yields amounts. Unknown length: whatever comes until the end is all."""
        with self.path.open("r+b" if self.path.exists() else "wb") as stream:
            stream.seek(self.bytes)
            stream.truncate()
            while content := response.read(READ_BYTES):
                stream.write(content)
                stream.flush()
                self._digest.update(content)
                self.bytes += len(content)
                yield len(content)
            files.fsync_file(stream)
        if self.total is None:
            self.total = self.bytes

    def restart(self) -> None:
        """From nothing."""
        self.remove()
        self.bytes, self.total, self._validator = 0, None, None
        self._digest = hashlib.sha1(usedforsecurity=False)

    def sha1(self) -> str:
        return self._digest.hexdigest()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._json.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        """Give it its name."""
        self.path.replace(path)
        self._json.unlink(missing_ok=True)
        files.fsync_directory(path.parent)


def _note(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(path.read_text())
        return note if {"sha1", "validator", "total"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None
