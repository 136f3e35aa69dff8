"""Downloads from a mirror on the loopback interface are resumed and verified, and leak no secrets."""

import errno
import hashlib
import json
import logging
import random
import shutil
import socket
import time
from types import SimpleNamespace

import pytest
from urllib3 import HTTPResponse
from urllib3.exceptions import MaxRetryError
from urllib3.util import retry

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.corpus import http, partial_file
from nbtrain.corpus.wiki import download as downloads

CONTENT = random.Random(1).randbytes(300_000)
WHERE = "run.yaml:7: data.sources[0]"


@pytest.fixture(autouse=True)
def quick(workspace, monkeypatch):
    """Record delays instead of waiting, and read in small blocks, so that a download can be interrupted."""
    waits: list[float] = []
    monkeypatch.setattr(partial_file, "READ_BYTES", 10_000)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=waits.append, time=time.time))
    return waits


def fetch(mirror, date="20260101", sha1=None, language="test", address=None):
    return downloads.download(language, date, address or mirror.address, sha1, WHERE)


def refusal(mirror, **settings):
    with pytest.raises(DataError) as caught:
        fetch(mirror, **settings)
    return str(caught.value)


def there() -> list[str]:
    """Return the names in data/download/, except the lock."""
    return sorted(path.name for path in downloads.folder().iterdir() if not path.name.startswith("."))


def test_whole(mirror, workspace):
    """A complete file gets its final name and a metadata record; a second call makes no request."""
    name = mirror.add_dump(CONTENT)
    found, is_new = fetch(mirror)
    assert is_new
    assert (workspace / "data" / "download" / name).read_bytes() == CONTENT
    assert found == downloads.Downloaded(
        name,
        "20260101",
        f"{mirror.address}/testwiki/20260101/{name}",
        hashlib.sha1(CONTENT).hexdigest(),
        300_000,
    )
    assert there() == [name, f"{name}.json"]
    asked = len(mirror.requests)
    assert fetch(mirror) == (found, False)
    assert len(mirror.requests) == asked
    assert mirror.requests[0][1]["User-Agent"].startswith("nbtrain/")


def test_latest_is_resolved_once(mirror):
    """ "latest" is resolved once to the newest date in the mirror's list, and the date is stored."""
    mirror.add_dump(CONTENT)
    name = mirror.add_dump(CONTENT[:500], date="20260201")
    assert fetch(mirror, date="latest")[0].date == "20260201"
    mirror.add_dump(CONTENT[:700], date="20260301")
    found, is_new = fetch(mirror, date="latest")
    assert (found.file, is_new) == (name, False)
    assert downloads.find("test", "20260301") is None


def test_multistream_is_preferred(mirror):
    """A multistream dump is preferred, because it can be read in parallel."""
    mirror.add_dump(CONTENT)
    name = mirror.add_dump(CONTENT[:999], kind="pages-articles-multistream")
    mirror.add_dump(CONTENT[:99], kind="pages-articles-multistream1")
    assert fetch(mirror)[0].file == name


def test_a_cut_connection_is_taken_up(mirror, quick, caplog):
    """After a broken connection, the same call requests only the rest, unless the file has changed."""
    mirror.add_dump(CONTENT)
    mirror.cut_after = [100_000, 50_000]
    with caplog.at_level(logging.WARNING):
        fetch(mirror)
    first, second, third = mirror.dump_requests()
    assert "Range" not in first
    assert (second["Range"], second["If-Range"]) == ("bytes=100000-", '"v1"')
    assert third["Range"] == "bytes=150000-"
    assert (downloads.folder() / "testwiki-20260101-pages-articles.xml.bz2").read_bytes() == CONTENT
    assert quick == []  # each of them transferred some bytes
    assert [record.getMessage() for record in caplog.records] == [
        f"{mirror.address}/testwiki/20260101/testwiki-20260101-pages-articles.xml.bz2: cut off after "
        f"{amount} of 300,000 bytes; trying again."
        for amount in ("100,000", "150,000")
    ]


def test_a_later_call_takes_it_up(mirror):
    """If all retries fail, the received bytes are kept, and the next call continues after them."""
    name = mirror.add_dump(CONTENT)
    mirror.cut_after = [120_000] + [0] * 10
    assert refusal(mirror) == (
        f"{WHERE}: {mirror.address}/testwiki/20260101/{name}: cut off after 120,000 of 300,000 bytes; 6 "
        "attempts in a row received no data. The bytes received before are kept: run the command again, or "
        "set mirror to another server."
    )
    assert there() == [f"{name}.part", f"{name}.part.json"]
    mirror.cut_after, mirror.requests = [], []
    fetch(mirror)
    assert [headers["Range"] for headers in mirror.dump_requests()] == ["bytes=120000-"]
    assert there() == [name, f"{name}.json"]


def test_a_server_without_ranges(mirror):
    """If the server does not support ranges, the whole file is sent again and replaces the partial one."""
    name = mirror.add_dump(CONTENT)
    mirror.has_ranges, mirror.cut_after = False, [100_000]
    fetch(mirror)
    assert (downloads.folder() / name).read_bytes() == CONTENT


@pytest.mark.parametrize("heeds", [True, False])
def test_a_changed_file_starts_from_nothing(mirror, heeds):
    """A file whose ETag has changed is downloaded from the start, even if the server ignores If-Range."""
    name = mirror.add_dump(CONTENT)
    mirror.cut_after = [120_000] + [0] * 10
    refusal(mirror)
    mirror.files.clear()
    changed = CONTENT[::-1]
    mirror.add_dump(changed)
    # A .part with another checksum than the list's is discarded, so its note gets the new checksum.
    note = downloads.folder() / f"{name}.part.json"
    files.write_json(note, {**json.loads(note.read_text()), "sha1": hashlib.sha1(changed).hexdigest()})
    mirror.etag, mirror.heeds_if_range, mirror.cut_after = '"v2"', heeds, []
    fetch(mirror)
    assert (downloads.folder() / name).read_bytes() == changed


def test_a_part_of_another_dump_is_left_aside(mirror):
    """A partial file of the same name but with another checksum is discarded."""
    name = mirror.add_dump(CONTENT)
    mirror.cut_after = [120_000] + [0] * 10
    refusal(mirror)
    mirror.files.clear()
    mirror.add_dump(CONTENT[1:])
    mirror.cut_after, mirror.requests = [], []
    fetch(mirror)
    assert "Range" not in mirror.dump_requests()[0]
    assert (downloads.folder() / name).read_bytes() == CONTENT[1:]


def test_wrong_checksum(mirror):
    """A file with a wrong checksum is not kept, and the error gives both checksums."""
    name = mirror.add_dump(CONTENT, sha1="0" * 40)
    assert refusal(mirror) == (
        f"{WHERE}: {mirror.address}/testwiki/20260101/{name}: its SHA-1 is "
        f"{hashlib.sha1(CONTENT).hexdigest()}, but the dump's list of checksums "
        f"has {'0' * 40}. The download was removed. Run the command again; if it fails again, set "
        f"mirror to another server, or date to another dump."
    )
    assert there() == []


def test_sha1_that_the_list_does_not_have(mirror):
    """A sha1 in the run that is not in the mirror's list is an error before the download."""
    name = mirror.add_dump(CONTENT)
    said = refusal(mirror, sha1="1" * 40)
    assert f"lists {hashlib.sha1(CONTENT).hexdigest()} for {name}" in said
    assert not mirror.dump_requests()


def test_sha1_of_either_kind(mirror):
    """The dump with the run's sha1 is downloaded and found again, even if it is not a multistream dump."""
    plain = mirror.add_dump(CONTENT)
    several = mirror.add_dump(CONTENT[:999], kind="pages-articles-multistream")
    sums = [hashlib.sha1(content).hexdigest() for content in (CONTENT, CONTENT[:999])]
    assert refusal(mirror, sha1="1" * 40) == (
        f"{WHERE}: sha1 = {'1' * 40}, but {mirror.address}/testwiki/20260101/testwiki-20260101-sha1sums.txt "
        f"lists {sums[1]} for {several} and {sums[0]} for {plain}. Correct sha1, or set date to the date of "
        f"the dump with this sha1."
    )
    for name, sha1 in ((plain, sums[0]), (several, sums[1]), (several, None)):
        assert fetch(mirror, sha1=sha1)[0].file == name
    assert len(mirror.dump_requests()) == 2
    assert [fetch(mirror, sha1=sha1)[0].file for sha1 in sums] == [plain, several]
    assert len(mirror.dump_requests()) == 2


def test_nothing_there(mirror):
    """A 404 is an error without retries, and so is a list without a dump of articles."""
    assert refusal(mirror) == (
        f"{WHERE}: {mirror.address}/testwiki/20260101/testwiki-20260101-sha1sums.txt: HTTP 404 Not Found. "
        f"The mirror does not have this dump: set language, date or mirror."
    )
    assert len(mirror.requests) == 1
    mirror.add_dump(CONTENT, kind="abstract")
    assert refusal(mirror).endswith(
        "lists 1 file, but no testwiki-YYYYMMDD-pages-articles.xml.bz2: the dump may not be finished yet. "
        "Set date to an earlier date."
    )


def test_a_busy_server_is_asked_again(mirror, quick, caplog):
    """After 503, 429 and 502, delays grow or follow Retry-After, up to a minute."""
    mirror.add_dump(CONTENT)
    mirror.statuses = [503, 429, 502]
    fetch(mirror)
    assert quick == [2.0, 4.0]
    for said, seconds in (("7", 7), ("9999", 60), ("soon", None)):
        shutil.rmtree(downloads.folder())
        quick.clear()
        mirror.statuses, mirror.retry_after = [503], said
        with caplog.at_level(logging.WARNING):
            fetch(mirror)
        assert quick == ([] if seconds is None else [seconds])
    assert caplog.messages[-2].endswith("-sha1sums.txt: HTTP 503; trying again in 60 s.")


def test_a_server_that_stays_busy(mirror, quick):
    """If all retries fail, the error has the server's last response."""
    mirror.add_dump(CONTENT)
    mirror.statuses = [503] * 6
    assert "-sha1sums.txt: HTTP 503; 6 attempts in a row received no data." in refusal(mirror)
    assert quick == [2.0, 4.0, 8.0, 16.0]


def test_nobody_answers(mirror):
    """If no server listens, the error has the system's message and hides the secrets of the URL."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    said = refusal(mirror, address=f"http://me:secret@127.0.0.1:{port}/?token=hush")
    assert "-sha1sums.txt?token=***: Connection refused; 6 attempts in a row received no data." in said


def test_full_disk(mirror, monkeypatch):
    """Too little disk space is an error before the download; if the disk fills up,
    the partial file is kept.
    """
    name = mirror.add_dump(CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(http.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 1 << 20))
        assert refusal(mirror) == (
            f"{WHERE}: data/download: 293.0 KiB still has to be downloaded and 256.0 MiB must stay free, but "
            f"only 1.0 MiB is free. Free up space, or set NBTRAIN_DATA to a folder on another disk."
        )
    with monkeypatch.context() as patch:
        # Fails after 40,000 bytes, as if the disk filled up meanwhile.
        def fsync_file(stream):
            raise OSError(errno.ENOSPC, "No space left on device", stream.name)

        patch.setattr(files, "fsync_file", fsync_file)
        assert refusal(mirror) == (
            f"{WHERE}: data/download/{name}.part: No space left on device. The received bytes are kept. Free "
            "up space or correct the permissions, or set NBTRAIN_DATA to a folder on another disk, then run "
            "the command again."
        )
    assert name not in there()
    fetch(mirror)
    assert (downloads.folder() / name).read_bytes() == CONTENT


def test_secrets_are_sent_and_never_shown(mirror, caplog):
    """User, password and query are sent to the mirror and are hidden in messages, logs and the record."""
    name = mirror.add_dump(CONTENT)
    host = mirror.address.removeprefix("http://")
    address = f"http://me:p%40ss@{host}/?token=hush&x"
    mirror.cut_after = [1000]
    with caplog.at_level(logging.DEBUG):
        found, _ = fetch(mirror, address=address)
        said = refusal(mirror, address=address, date="20990101")
    assert found.url == f"http://{host}/testwiki/20260101/{name}?token=***&***"
    assert mirror.requests[0][0].endswith("sha1sums.txt?token=hush&x")
    assert mirror.requests[0][1]["Authorization"] == "Basic bWU6cEBzcw=="  # me:p@ss
    everything = said + caplog.text + "".join(path.read_text() for path in downloads.folder().glob("*.json"))
    assert "***" in said and "***" in caplog.text
    for secret in ("hush", "p%40ss", "p@ss", "bWU6"):
        assert secret not in everything


@pytest.mark.parametrize(
    "address", ["file:///etc", "ftp://host", "dumps.wikimedia.org", "http://a b", "http://h:x"]
)
def test_mirrors_that_are_no_http_address(mirror, address):
    """A mirror that is not an HTTP address is refused before any connection."""
    assert refusal(mirror, address=address) == (
        f"{WHERE}: mirror = {address!r} must begin with https:// or http:// and name a host."
    )


def test_redirects(mirror):
    """Only redirects to http(s) are followed, and passwords are not sent to another host."""
    name = mirror.add_dump(CONTENT)
    path = f"/testwiki/20260101/{name}"
    mirror.redirect[path] = "file:///etc/passwd"
    assert refusal(mirror).endswith(
        f"{name}: a redirect was not followed (at most 5 redirects are followed, only to http(s), and "
        f"never from https to http). Set mirror to another server."
    )
    mirror.redirect[path] = path
    assert "a redirect was not followed" in refusal(mirror)
    mirror.files["/elsewhere"] = CONTENT
    port = mirror.server_address[1]
    mirror.redirect[path] = f"http://localhost:{port}/elsewhere"
    fetch(mirror, address=f"http://me:secret@127.0.0.1:{port}")
    last, before = mirror.requests[-1], mirror.requests[-2]
    assert last[0] == "/elsewhere" and "Authorization" not in last[1]
    assert "Authorization" in before[1]


def test_cuts_behind_a_redirect(mirror, quick):
    """Redirects do not count as retries, and interrupted downloads behind them are retried as usual."""
    name = mirror.add_dump(CONTENT)
    mirror.redirect[f"/testwiki/20260101/{name}"] = "/elsewhere.bz2"
    mirror.files["/elsewhere.bz2"] = CONTENT
    mirror.cut_after = [0] * 10
    message = refusal(mirror)
    assert f"{name}: cut off after 0 of 300,000 bytes; 6 attempts in a row received no data." in message
    assert quick == [2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("before", "location", "is_followed"),
    [
        ("https://a/x", "https://b/y", True),
        ("https://a/x", "/y", True),
        ("http://a/x", "https://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a/x", "ftp://a/x", False),
    ],
)
def test_redirects_that_are_refused(before, location, is_followed):
    """A redirect from https to http is refused; following a redirect does not count as a retry."""
    patience = http.Patience.for_address("a")
    response = HTTPResponse(status=302, headers={"Location": location})
    if is_followed:
        assert patience.increment("GET", before, response).total == patience.total
    else:
        with pytest.raises(MaxRetryError):
            patience.increment("GET", before, response)


def test_proxies_of_the_environment(mirror, monkeypatch):
    """HTTP_PROXY is used, with its password; NO_PROXY excludes hosts."""
    name = mirror.add_dump(CONTENT)
    for path in list(mirror.files):
        mirror.files[f"http://dumps.example{path}"] = mirror.files[path]
    host = mirror.address.removeprefix("http://")
    monkeypatch.setenv("http_proxy", f"http://me:secret@{host}")
    found, _ = fetch(mirror, address="http://dumps.example")
    assert found.url == f"http://dumps.example/testwiki/20260101/{name}"
    assert mirror.requests[-1][1]["proxy-authorization"].startswith("Basic ")
    shutil.rmtree(downloads.folder())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetch(mirror)
    assert "proxy-authorization" not in mirror.requests[-1][1]


@pytest.mark.parametrize(
    ("name", "proxy", "shown"),
    [
        ("HTTPS_PROXY", "socks5h://127.0.0.1:1080", "socks5h://127.0.0.1:1080"),
        ("https_proxy", "http://me:secret@proxy:80x", "http://***@proxy:80x"),
        ("https_proxy", "http://[::1", "***"),
        ("https_proxy", "http://:80", "http://:80"),
    ],
)
def test_proxies_that_are_no_http_address(mirror, monkeypatch, name, proxy, shown):
    """A proxy that is not an HTTP address is refused, with its variable's name, before any connection."""
    monkeypatch.setenv(name, proxy)
    assert refusal(mirror, address="https://dumps.example") == (
        f"{WHERE}: {name} = {shown!r}: a proxy's address must begin with http:// or https:// and contain a "
        f"host; a port is optional and at most 65535. Correct {name}, or add dumps.example to NO_PROXY."
    )


def test_passwords_that_are_not_latin(mirror, monkeypatch):
    """User names and passwords are sent in UTF-8, to mirrors and to proxies."""
    mirror.add_dump(CONTENT)
    host = mirror.address.removeprefix("http://")
    fetch(mirror, address=f"http://me:%D0%BF%D0%B0@{host}")
    assert mirror.requests[-1][1]["Authorization"] == "Basic bWU60L/QsA=="  # me:па
    monkeypatch.setenv("http_proxy", f"http://me:%D0%BF%D0%B0@{host}")
    assert "HTTP 404" in refusal(mirror, date="20990101", address="http://dumps.example")
    assert mirror.requests[-1][1]["proxy-authorization"] == "Basic bWU60L/QsA=="


def test_two_at_once(mirror):
    """A second download at the same time is refused, and the message says to wait."""
    mirror.add_dump(CONTENT)
    downloads.folder().mkdir(parents=True)
    with downloads.locked(downloads.folder() / ".testwiki.lock", WHERE):
        assert refusal(mirror) == (
            f"{WHERE}: another process is downloading this Wikipedia into data/download. Wait until it has "
            f"finished, then run the command again."
        )


def test_a_disk_that_locks_no_file(mirror, monkeypatch):
    """A file system without locks is reported as such, not as another process that holds the lock."""

    def flock(stream, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(downloads.fcntl, "flock", flock)
    assert refusal(mirror) == (
        f"{WHERE}: data/download/.testwiki.lock: the file system does not support file locks (Function not "
        "implemented), so two processes could write the same dump. Set NBTRAIN_DATA to a folder on another "
        "disk."
    )


def test_databases():
    """Language codes with dashes, or that differ from their database's name, are translated."""
    assert [downloads.database(code) for code in ("en", "zh-min-nan", "be-tarask", "nb")] == [
        "enwiki",
        "zh_min_nanwiki",
        "be_x_oldwiki",
        "nowiki",
    ]


def test_sha1_of_a_brought_file(workspace, monkeypatch):
    """The checksum of a user's own file is computed once, and again only if its size or time changes."""
    path = workspace / "a.xml"
    path.write_bytes(CONTENT)
    right = hashlib.sha1(CONTENT).hexdigest()
    with pytest.raises(DataError, match=f"a.xml: its SHA-1 is {right}, but the setting sha1 is {'2' * 40}"):
        downloads.check_sha1(path, "2" * 40, WHERE)
    assert downloads.check_sha1(path, right, WHERE)
    monkeypatch.setattr(downloads, "Progress", None)
    assert not downloads.check_sha1(path, right, WHERE)
