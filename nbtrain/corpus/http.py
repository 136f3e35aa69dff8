"""Downloads over HTTP that go on where they stopped."""

import contextlib
import errno
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

from nbtrain.base import files
from nbtrain.base.addresses import redacted
from nbtrain.base.amounts import size
from nbtrain.base.errors import DataError
from nbtrain.base.progress import Progress
from nbtrain.base.version import __version__
from nbtrain.base.workspace import data_home, display

logger = logging.getLogger(__name__)

SPARE_BYTES = 256 << 20


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


TIMEOUT_SECONDS = 60.0

ATTEMPTS = 6
"""Tries in a row that bring nothing new, before an error."""

FIRST_WAIT_SECONDS = 1.0

LONGEST_WAIT_SECONDS = 60.0

READ_BYTES = 1 << 20

LIST_BYTES = 4 << 20


def folder() -> Path:
    """Where downloads lie: data/download/."""
    return data_home() / "download"


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
                "User-Agent": f"nbtrain/{__version__} (urllib)",
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
