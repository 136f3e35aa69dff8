"""A partial download: <name>.part, and <name>.part.json with the expected SHA-1, the ETag and the size."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from urllib3.exceptions import ProtocolError

from nbtrain.base import files

READ_BYTES = 1 << 20


class PartialFile:
    """An incomplete download; each response appends bytes to its file.

    The argument `sha1` is the expected hash of the complete file, and `total` its size in bytes, if known.
    The method sha1() returns the hash of the bytes received so far.
    """

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
                self._digest = hashlib.file_digest(stream, lambda: hashlib.sha1(usedforsecurity=False))
                self.bytes = stream.tell()
        self._sha1 = sha1

    @property
    def complete(self) -> bool:
        return self.total is not None and self.bytes == self.total

    def range_headers(self) -> dict[str, str]:
        """Return headers that request the missing bytes, or the whole file if it changed on the server.

        The result is {} if no bytes have been received yet.
        """
        if not self.bytes:
            return {}
        headers = {"Range": f"bytes={self.bytes}-"}
        if self._validator:
            headers["If-Range"] = self._validator
        return headers

    def begin(self, response: Any) -> None:
        """Find out from the response's headers whether the body holds the missing bytes or the whole file.

        If the body holds the whole file, the bytes received before are discarded. Raises ProtocolError if it
        holds neither.
        """
        # Only a strong ETag guarantees the same bytes.
        tag = response.headers.get("ETag", "")
        validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
        if response.status == 206:
            match = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+)", response.headers.get("Content-Range", ""))
            is_same = self._validator is None or validator in (None, self._validator)
            first, total = map(int, match.groups()) if match else (-1, -1)
            if not is_same or first != self.bytes or self.total not in (None, total):
                # The response holds a range other than the requested one, or a range of another file.
                self.restart()
                raise ProtocolError("the file changed on the server, so the download starts over")
            self.total = total
            return
        self.restart()
        length = response.headers.get("Content-Length", "")
        self.total = int(length) if length.isdigit() else None
        self._validator = validator
        files.write_json(self._json, {"sha1": self._sha1, "validator": self._validator, "total": self.total})

    def receive(self, response: Any) -> Iterator[int]:
        """Append the response body to the file and yield the size of each chunk.

        Without Content-Length, the body ends when the connection closes.
        """
        with self.path.open("r+b" if self.path.exists() else "wb") as stream:
            stream.seek(self.bytes)
            stream.truncate()
            while content := response.read(READ_BYTES, decode_content=False):
                stream.write(content)
                stream.flush()
                self._digest.update(content)
                self.bytes += len(content)
                yield len(content)
            files.fsync_file(stream)
        if self.total is None:
            self.total = self.bytes

    def restart(self) -> None:
        """Discard everything received so far."""
        self.remove()
        self.bytes, self.total, self._validator = 0, None, None
        self._digest = hashlib.sha1(usedforsecurity=False)

    def sha1(self) -> str:
        return self._digest.hexdigest()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._json.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        """Rename the complete file to `path`, and remove <name>.part.json."""
        self.path.replace(path)
        self._json.unlink(missing_ok=True)
        files.fsync_directory(path.parent)


def _note(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(path.read_text())
        return note if {"sha1", "validator", "total"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None
