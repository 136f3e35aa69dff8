"""Small dumps, and a mirror on the loopback interface that can be made to fail."""

import bz2
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

import pytest

SITEINFO = (
    "<siteinfo><sitename>Wikipedia</sitename><dbname>testwiki</dbname><base>https://test.example/</base><namespaces>"
    '<namespace key="0" /><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    "</namespaces></siteinfo>"
)


def page(title: str, text: str, namespace: int = 0, redirect: bool = False, model: str = "wikitext") -> str:
    """Return a <page> element as in a dump."""
    mark = '    <redirect title="X" />' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n"
        f"{mark}    <revision>\n      <model>{model}</model>\n"
        f'      <text xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


def dump_xml(pages: list[str], siteinfo: str = SITEINFO) -> bytes:
    """Return a complete dump."""
    head = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n'
    return f"{head}{siteinfo}\n{''.join(pages)}</mediawiki>\n".encode()


def multistream(pages: list[str], a_stream: int = 10) -> bytes:
    """Return a multistream dump as Wikipedia writes it: the header, a stream for every few pages, the end."""
    whole = dump_xml([]).decode()
    head, end = whole[: whole.index("</mediawiki>")], "</mediawiki>\n"
    groups = ["".join(pages[start : start + a_stream]) for start in range(0, len(pages), a_stream)]
    return b"".join(bz2.compress(piece.encode()) for piece in (head, *groups, end))


class Mirror(ThreadingHTTPServer):
    """An HTTP server of `files` that records `requests` as (path, headers)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.etag: str | None = '"v1"'
        self.has_ranges = True
        self.heeds_if_range = True
        self.cut_after: list[int] = []
        """How many bytes the next answers with a dump send before they break, one by one."""
        self.statuses: list[int] = []
        """The statuses of the next answers."""
        self.retry_after: str | None = None
        self.redirect: dict[str, str] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_dump(
        self, content: bytes, wiki="testwiki", date="20260101", kind="pages-articles", sha1=None
    ) -> str:
        """Serve a dump and its checksum list, also under "latest", and return its name."""
        name = f"{wiki}-{date}-{kind}.xml.bz2"
        self.files[f"/{wiki}/{date}/{name}"] = content
        line = f"{sha1 or hashlib.sha1(content).hexdigest()}  {name}\n".encode()
        for folder in (date, "latest"):
            sums = f"/{wiki}/{folder}/{wiki}-{folder}-sha1sums.txt"
            self.files[sums] = self.files.get(sums, b"") + line
        return name

    def dump_requests(self) -> list[dict[str, str]]:
        """Return the headers of the requests for dumps."""
        return [headers for path, headers in self.requests if path.split("?")[0].endswith(".bz2")]


class _Handler(BaseHTTPRequestHandler):
    server: Mirror

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests.append((self.path, dict(self.headers)))
        path = self.path.split("?")[0]
        status = server.statuses.pop(0) if server.statuses else 200
        if path in server.redirect:
            self.send_response(302)
            self.send_header("Location", server.redirect[path])
            self.end_headers()
            return
        if status != 200 or path not in server.files:
            self.send_response(status if status != 200 else 404)
            if server.retry_after is not None:
                self.send_header("Retry-After", server.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, start = server.files[path], 0
        asked = re.fullmatch("bytes=([0-9]+)-", self.headers.get("Range", ""))
        unchanged = not server.heeds_if_range or self.headers.get("If-Range", server.etag) == server.etag
        if asked and server.has_ranges and unchanged:
            start = int(asked[1])
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if path.endswith(".bz2") and server.cut_after:
            self.wfile.write(content[start : start + server.cut_after.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(content[start:])


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
