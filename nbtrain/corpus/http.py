"""Downloads over HTTP that resume after an interruption.

urllib3 connects, follows redirects, counts attempts and waits (`Patience` is a subclass of its Retry). This
module decides where an interrupted download resumes and which redirects are refused, and keeps secrets out of
messages.
"""

import contextlib
import logging
import os
import re
import shutil
import ssl
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit, urlunsplit

import urllib3
from urllib3 import exceptions
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError, ResponseError, SSLError
from urllib3.util import Retry, Timeout

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.addresses import redacted
from nbtrain.base.text.amounts import size
from nbtrain.base.version import __version__
from nbtrain.base.workspace import data_home, display
from nbtrain.corpus.partial_file import PartialFile

logger = logging.getLogger(__name__)

SPARE_BYTES = 256 << 20

TIMEOUT_SECONDS = 60.0

ATTEMPTS = 6  # consecutive attempts that receive no new bytes, after which the download fails

MAX_REDIRECTS = 5

LONGEST_WAIT_SECONDS = 60

BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses after which the same request may succeed later

LIST_BYTES = 4 << 20

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Downloaded:
    """The record of a downloaded dump, stored next to the dump as <name>.json."""

    file: str
    date: str
    """Date of the dump, YYYYMMDD, even if "latest" was requested."""
    url: str
    """Address of the dump, without secrets."""
    sha1: str
    bytes: int


def folder() -> Path:
    """Return the folder of downloads: data/download/."""
    return data_home() / "download"


class Patience(Retry):
    """Retry policy for urllib3 after busy servers and broken connections.

    It waits 2, 4, 8 ... seconds, or as long as the Retry-After header requests. Redirects are counted
    separately. There is no retry after an untrusted certificate, or after a redirect from https to http or to
    a scheme other than http(s). `shown` is the address in log messages.
    """

    def __init__(self, *arguments: Any, shown: str = "", **settings: Any):
        super().__init__(*arguments, **settings)
        self.shown = shown

    @classmethod
    def for_address(cls, shown: str) -> "Patience":
        """Return a Patience with all attempts left; `shown` is the address in log messages."""
        waits = {"backoff_factor": 1, "backoff_max": LONGEST_WAIT_SECONDS}
        return cls(ATTEMPTS - 1, redirect=MAX_REDIRECTS, status_forcelist=BUSY, shown=shown, **waits)

    def new(self, **settings: Any) -> "Patience":
        return super().new(shown=self.shown, **settings)

    def increment(self, method=None, url=None, response=None, error=None, _pool=None, _stacktrace=None):
        location = response.get_redirect_location() if response is not None and error is None else None
        if location:
            before, after = urlsplit(url or ""), urlsplit(urljoin(url or "", location))
            if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
                raise MaxRetryError(_pool, url or "", ResponseError("a redirect that is refused"))
            # A redirect is not a failure, so it does not use up an attempt.
            spared = self.new(total=(self.total or 0) + 1)
            return Retry.increment(spared, method, url, response, error, _pool, _stacktrace)
        if isinstance(error, SSLError) and _is_untrusted(error):
            raise MaxRetryError(_pool, url or "", error)
        return super().increment(method, url, response, error, _pool, _stacktrace)

    def get_retry_after(self, response: Any) -> float | None:
        try:
            seconds = super().get_retry_after(response)
        except exceptions.InvalidHeader:
            return None
        return None if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)

    def sleep(self, response: Any = None) -> None:
        wait = (self.get_retry_after(response) if response is not None else None) or self.get_backoff_time()
        last = self.history[-1]
        reason = reason_of(last.error) if last.error else f"HTTP {last.status}"
        logger.warning("%s: %s; trying again%s.", self.shown, reason, f" in {wait:.0f} s" if wait else "")
        super().sleep(response)


class MirrorClient:
    """Sends requests to one mirror. Messages show addresses without their secrets."""

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
        self._pool = pool_for(parts.scheme, str(parts.hostname), where)
        self._headers = {"User-Agent": f"nbtrain/{__version__} (urllib3)", "Accept-Encoding": "identity"}
        if parts.username is not None:
            self._headers["Authorization"] = _basic_auth(parts)

    def url(self, address: str) -> str:
        """Return the URL of a relative address, with the mirror's query but without its password."""
        host = self._parts.netloc.rpartition("@")[2]
        path = f"{self._parts.path.rstrip('/')}/{address}"
        return urlunsplit((self._parts.scheme, host, path, self._parts.query, ""))

    def printable(self, address: str) -> str:
        """Return the URL of a relative address without secrets, for messages, logs and records."""
        return redacted(self.url(address))

    def text(self, address: str) -> str:
        """Download a small file and return its text. Raises DataError."""
        patience = Patience.for_address(self.printable(address))
        with _silent_urllib3():
            while True:
                with self._open(address, patience) as response:
                    try:
                        content = response.read(LIST_BYTES, decode_content=False)
                        if not response.length_remaining:
                            return content.decode(errors="replace")
                        error: HTTPError = ProtocolError("the connection was cut")
                    except HTTPError as failure:
                        error = failure
                patience = self._again(address, response.retries, error)

    def dump(self, address: str, name: str, date: str, sha1: str) -> Downloaded:
        """Download a file to data/download/<name> and return its record. Raises DataError.

        `date` is the dump's date for the record, and `sha1` the hash that the file must have.
        """
        part = PartialFile(folder() / f"{name}.part", sha1)
        with _silent_urllib3():
            self._receive(address, name, part)
        found = part.sha1()
        if found != sha1:
            part.remove()
            raise DataError(
                f"{self.where}: {self.printable(address)}: its SHA-1 is {found}, but the dump's list of "
                f"checksums has {sha1}. The download was removed. Run the command again; if it fails "
                "again, set mirror to another server, or date to another dump."
            )
        record = Downloaded(name, date, self.printable(address), sha1, part.bytes)
        files.write_json(folder() / f"{name}.json", asdict(record))
        part.finish(folder() / name)
        return record

    def _receive(self, address: str, name: str, part: PartialFile) -> None:
        """Request the missing bytes until the file is complete."""
        patience = Patience.for_address(self.printable(address))
        with contextlib.ExitStack() as stack:
            progress: Progress | None = None
            while not part.complete:
                before = part.bytes
                error: HTTPError | None = None
                with self._open(address, patience, part.range_headers()) as response:
                    if response.status == 416:
                        part.restart()  # the file on the server is now shorter than the partial download
                        continue
                    try:
                        part.begin(response)
                        if progress is None:
                            self._check_space(part)
                            progress = stack.enter_context(Progress(name, part.total, "B"))
                        progress.update(part.bytes - progress.done)
                        for amount in part.receive(response):
                            progress.update(amount)
                    except HTTPError as failure:
                        error = failure
                if part.complete:
                    return
                if part.total is not None:
                    error = ProtocolError(f"cut off after {part.bytes:,} of {part.total:,} bytes")
                has_grown = part.bytes > before
                patience = Patience.for_address(self.printable(address)) if has_grown else response.retries
                patience = self._again(address, patience, error or ProtocolError("the connection was cut"))

    def _open(self, address: str, patience: Any, headers: dict[str, str] | None = None) -> Any:
        """Request an address and return the response. Raises DataError for a failure.

        If `headers` request a range, the response may have status 416 (the range does not exist).
        """
        try:
            url, sent = self.url(address), {**self._headers, **(headers or {})}
            response = self._pool.request("GET", url, headers=sent, retries=patience, preload_content=False)
        except HTTPError as error:
            raise self._error(address, error) from None
        if response.status >= 300 and not (response.status == 416 and headers):
            response.close()
            is_gone = response.status in (404, 410)
            fix = "Set mirror to another server."
            if is_gone:
                fix = "The mirror does not have this dump: set language, date or mirror."
            raise DataError(
                f"{self.where}: {self.printable(address)}: HTTP {response.status} {response.reason}. {fix}"
            )
        return response

    def _again(self, address: str, patience: Any, error: HTTPError) -> Patience:
        """Wait after a response that was cut off. Raises DataError if no attempt is left."""
        # The next request follows redirects from the start, and urllib3 computes its pause from the errors
        # since the last redirect.
        errors = tuple(entry for entry in patience.history if entry.redirect_location is None)
        patience = patience.new(redirect=MAX_REDIRECTS, history=errors)
        try:
            patience = patience.increment("GET", self.url(address), error=error)
        except HTTPError as last:
            raise self._error(address, last) from None
        patience.sleep()
        return patience

    def _error(self, address: str, error: HTTPError) -> DataError:
        cause = error.reason if isinstance(error, MaxRetryError) else error
        begin = f"{self.where}: {self.printable(address)}: {reason_of(cause)}"
        if isinstance(cause, SSLError) and _is_untrusted(cause):
            return DataError(
                f"{begin}. Set mirror to a server whose certificate this machine trusts, or set "
                f"SSL_CERT_FILE to a file with the certificates to trust."
            )
        if isinstance(cause, ResponseError) and "redirect" in str(cause):
            return DataError(f"{begin}. Set mirror to another server.")
        return DataError(
            f"{begin}; {ATTEMPTS} attempts in a row received no data. The bytes received before are kept: "
            f"run the command again, or set mirror to another server."
        )

    def _check_space(self, part: PartialFile) -> None:
        free = shutil.disk_usage(folder()).free
        missing = (part.total or 0) - part.bytes
        if free < missing + SPARE_BYTES:
            raise DataError(
                f"{self.where}: {display(folder())}: {size(missing)} still has to be downloaded and "
                f"{size(SPARE_BYTES)} must stay free, but only {size(free)} is free. Free up space, or set "
                f"NBTRAIN_DATA to a folder on another disk."
            )


def reason_of(error: Any) -> str:
    """Return a description of an error without the address, which may contain secrets."""
    if isinstance(error, ResponseError):
        if "redirect" in str(error):
            return (
                f"a redirect was not followed (at most {MAX_REDIRECTS} redirects are followed, only to "
                "http(s), and never from https to http)"
            )
        return f"HTTP {re.sub('[^0-9]', '', str(error))}"
    # urllib3's message contains the address, so look for the operating system's message among the causes.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = next((one for one in cause.args if isinstance(one, BaseException)), cause.__cause__)
    if isinstance(error, exceptions.TimeoutError):
        return f"no response within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(error, ProtocolError) and len(error.args) == 1:
        return str(error)
    return "the connection was cut" if isinstance(error, ProtocolError) else type(error).__name__


def _is_untrusted(error: SSLError) -> bool:
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in (*error.args, error.__cause__))


def pool_for(scheme: str, host: str, where: str) -> urllib3.PoolManager:
    """Return a connection pool that respects HTTP_PROXY, HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE.

    Requests to this machine itself never go through a proxy. Raises DataError if a proxy address is invalid.
    """
    settings: dict[str, Any] = {"timeout": Timeout(TIMEOUT_SECONDS)}
    settings["ssl_context"] = ssl.create_default_context()
    is_direct = host in LOOPBACK_HOSTS or urllib.request.proxy_bypass(host)
    proxy = None if is_direct else urllib.request.getproxies().get(scheme)
    if not proxy:
        return urllib3.PoolManager(**settings)
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if not parts.hostname:
            raise ValueError("no host")
        headers = None if parts.username is None else {"proxy-authorization": _basic_auth(parts)}
        address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        return urllib3.ProxyManager(address, proxy_headers=headers, **settings)
    except (ValueError, HTTPError):
        names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
        name = next((name for name in names if os.environ.get(name)), names[1])
        raise DataError(
            f"{where}: {name} = {redacted(proxy)!r}: a proxy's address must begin with http:// or https:// "
            f"and contain a host; a port is optional and at most 65535. Correct {name}, or add {host} to "
            f"NO_PROXY."
        ) from None


def _basic_auth(parts: SplitResult) -> str:
    """Return the Authorization header for an address's user and password, in UTF-8.

    urllib3's own helper is not used, because urllib3 2.2 accepts only Latin-1.
    """
    user, password = unquote_to_bytes(parts.username or ""), unquote_to_bytes(parts.password or "")
    return f"Basic {b64encode(user + b':' + password).decode()}"


@contextlib.contextmanager
def _silent_urllib3() -> Iterator[None]:
    """Suppress urllib3's log messages from this thread, which would contain addresses with their secrets."""
    thread = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    names = ("connectionpool", "poolmanager", "connection", "response", "util.retry")
    loggers = [logging.getLogger(f"urllib3.{name}") for name in names]
    for one in loggers:
        one.addFilter(is_of_others)
    try:
        yield
    finally:
        for one in loggers:
            one.removeFilter(is_of_others)
