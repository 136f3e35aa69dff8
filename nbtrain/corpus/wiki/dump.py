"""Reads the pages of a MediaWiki dump (pages-articles), .xml or compressed, in constant memory.

    bytes -> chunks that begin and end between pages -> each <page> parsed separately with lxml -> Page

A page belongs to the part of the file in which its "<page>" begins: a reader skips to the first page after
its start, and reads past its stop until its last page is complete. Reading can start at any offset of an .xml
file and at any stream of a .bz2 file; other compressed files and UTF-16 files are read from the beginning.
Page text contains "&lt;" instead of "<", so tags can be found before the XML is parsed, and a broken page
does not affect other pages.
"""

import bz2
import codecs
import html
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.files import compression

READ_BYTES = 1 << 20
# A Wikipedia page has at most 2 MiB of wikitext. Without a limit, a damaged file would fill the memory.
MAX_PAGE_BYTES = 64 << 20
HEAD_BYTES = 1 << 20
AGAIN = "Download the dump again, and compare its SHA-1."

# The beginning of a bz2 stream: its header and the marker of its first block. Other data matches by chance at
# one of 10^24 positions.
STREAM_BEGINS = re.compile(rb"BZh[1-9]\x31\x41\x59\x26\x53\x59")
PAGE_BEGINS = re.compile(rb"<page[\s>]")
PAGE_ENDS = b"</page>"
DUMP_ENDS = b"</mediawiki>"
TAG_BYTES = 16
# The beginning of a UTF-16 file, with or without a byte order mark.
LITTLE, BIG = "utf-16-le", "utf-16-be"
ENCODINGS = {codecs.BOM_UTF16_LE: LITTLE, b"<\0": LITTLE, codecs.BOM_UTF16_BE: BIG, b"\0<": BIG}


class Page(NamedTuple):
    """One page as stored in the dump."""

    title: str
    namespace: int
    is_redirect: bool
    model: str
    """Content model; "wikitext" if the dump does not name one."""
    text: str
    """Text of the page's newest revision."""
    older_revisions: int = 0
    """Number of older revisions in the dump (pages-meta-history), which are skipped."""


class BrokenPage(NamedTuple):
    """A page that cannot be read; `what` is the reason, e.g. that the XML is not well-formed."""

    title: str
    what: str


@dataclass(frozen=True)
class Dump:
    """Properties of a dump, read from its beginning."""

    path: Path
    where: str
    """Prefix of messages."""
    packing: str | None
    """Compression as a suffix, determined from the first bytes; None if the file is not compressed."""
    encoding: str = "utf-8"  # or utf-16-le, utf-16-be
    namespaces: dict[int, str] = field(default_factory=dict)
    """Namespaces in <siteinfo>, as {key: name}; empty without <siteinfo>."""
    site: dict[str, str] = field(default_factory=dict)
    """Values of sitename, dbname and base in <siteinfo>, if present."""
    language: str = ""
    """Language of the wiki, from xml:lang of <mediawiki>; empty if it is missing."""


class Piece(NamedTuple):
    """A chunk of a dump that holds complete pages."""

    xml: bytes
    """The pages as UTF-8 XML."""
    position: int
    """Offset in the file up to which it has been read."""


def open_dump(path: Path, where: str = "data.sources") -> Dump:
    """Read the beginning of a dump and return its properties. Raises DataError if the file is not a dump."""
    name = f"{where}: {display(path)}"
    try:
        with path.open("rb") as stream:
            begin, packing = compression.beginning(stream)
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}.") from error
    if packing is None:
        compression.refuse_other_files(begin, path, where)
        # A dump cannot begin with the text BZh, so the file is bzip2 even if its next bytes are damaged.
        packing = ".bz2" if begin.startswith(b"BZh") else None
    raw = b""
    try:
        for block in _blocks(Dump(path, where, packing), 0, None):
            raw += block.content
            if len(raw) >= HEAD_BYTES:
                break
    except _Cut as error:
        if not raw:
            raise DataError(f"{name}: {error}. {AGAIN}") from error
    raw = raw[:HEAD_BYTES]
    encoding = next((encoding for mark, encoding in ENCODINGS.items() if raw.startswith(mark)), "utf-8")
    head = raw.decode(encoding, errors="replace").lstrip("\ufeff")
    root = re.search(r"<(?![?!])([^\s/>]*)", re.sub(r"<!--.*?-->", "", head, flags=re.DOTALL))
    if root is None or root[1].rpartition(":")[2] != "mediawiki":
        what = f"its first element is <{root[1]}>" if root else "no XML element was found"
        raise DataError(
            f"{name}: not a MediaWiki dump: {what}, but it must be <mediawiki>. Set path to a "
            "pages-articles dump."
        )
    if re.search(r"<!(DOCTYPE|ENTITY)", head[: head.find("<mediawiki")], re.IGNORECASE):
        raise DataError(
            f"{name}: the file declares a document type, which a dump never does and which can be abused to "
            "exhaust the memory. Download the dump from its source again."
        )
    declared = re.match(r"""\s*<\?xml[^>]*encoding=["']([A-Za-z0-9_.-]+)["']""", head)
    if declared and not encoding.startswith("utf-16") and declared[1].lower() not in ("utf-8", "us-ascii"):
        raise DataError(
            f"{name}: the encoding is {declared[1]}, but only UTF-8 and UTF-16 are supported. Convert the "
            f'file with `iconv -f {declared[1]} -t UTF-8 OLD > NEW`, and write encoding="utf-8" in the first '
            "line of the new file."
        )
    opening = re.search(r"<(?:\w+:)?mediawiki\b[^>]*", head)
    named = opening and re.search(r"""xml:lang=["']([A-Za-z-]{2,20})["']""", opening[0])
    language = named[1].lower() if named else ""
    end = head.find("</siteinfo>")
    if end < 0:
        return Dump(path, where, packing, encoding, language=language)
    try:
        siteinfo = _parse(head[max(0, head.find("<siteinfo")) : end + len("</siteinfo>")].encode())
    except SyntaxError as error:  # lxml's XMLSyntaxError is one
        raise DataError(f"{name}: its <siteinfo> is not well-formed XML: {error.msg}. {AGAIN}") from error
    namespaces = {
        int(child.get("key")): child.text or ""
        for child in siteinfo.iter("{*}namespace")
        if re.fullmatch("-?[0-9]{1,9}", child.get("key") or "")
    }
    site = {name: siteinfo.findtext(f"{{*}}{name}") or "" for name in ("sitename", "dbname", "base")}
    site = {key: text for key, text in site.items() if text}
    return Dump(path, where, packing, encoding, namespaces, site, language)


def entry_points(dump: Dump, part_bytes: int) -> list[int]:
    """Return the offsets at which reading may start, at least `part_bytes` apart; the first one is 0."""
    size = dump.path.stat().st_size
    if dump.encoding != "utf-8" or dump.packing not in (None, ".bz2"):
        return [0]
    if dump.packing is None:
        return list(range(0, size, part_bytes)) or [0]
    points = [0]
    with dump.path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while match := STREAM_BEGINS.search(content, points[-1] + part_bytes):
            points.append(match.start())
    return points


def pieces(
    dump: Dump, start: int = 0, stop: int | None = None, piece_bytes: int = 8 << 20
) -> Iterator[Piece]:
    """Yield the pages that begin in [start, stop) of the file, in chunks of about `piece_bytes` of XML.

    `start` and `stop` are entry points; a `stop` of None is the end of the file. If the file is truncated or
    damaged, the pages before the damage are yielded, and then DataError is raised.
    """
    buffer = bytearray()  # begins with a page once `started` is True
    started = False
    behind: int | None = None  # position in `buffer` at which the range of the next part begins
    position = start
    title = b""  # title of the last page that was yielded
    cut = ""
    blocks = _utf8_blocks(dump, start, stop)
    while True:
        try:
            block = next(blocks, None)
        except _Cut as error:
            cut, block = str(error), None
        if block is None:
            break
        position = block.end
        if behind is None and stop is not None and block.begin >= stop:
            behind = len(buffer)
        buffer += block.content
        if not started:
            match = PAGE_BEGINS.search(buffer)
            # Before the first page, keep only the end of the content, where a tag may be split.
            away = match.start() if match else max(0, len(buffer) - TAG_BYTES)
            if behind is not None:
                behind -= away
                if behind <= 0:
                    return
            if match is None:
                if DUMP_ENDS in buffer:
                    return
                del buffer[:away]
                continue
            del buffer[:away]
            started = True
        if behind is not None:
            match = PAGE_BEGINS.search(buffer, behind)
            ends = buffer.find(DUMP_ENDS, behind)
            if match is not None or ends >= 0:
                yield Piece(bytes(buffer[: ends if match is None else match.start()]), position)
                return
        elif len(buffer) >= piece_bytes and (whole := _whole(buffer)):
            title = _last_title(buffer, whole)
            yield Piece(bytes(buffer[:whole]), position)
            del buffer[:whole]
        if len(buffer) > MAX_PAGE_BYTES + piece_bytes:
            cut = f"no page ends within {MAX_PAGE_BYTES >> 20} MiB"
            break
    ends = -1 if cut else buffer.find(DUMP_ENDS)
    whole = ends if ends >= 0 else _whole(buffer)
    if started and whole:
        title = _last_title(buffer, whole) or title
        yield Piece(bytes(buffer[:whole]), position)
    if ends < 0:
        after = f"page {_name(title)!r}" if title else f"byte {start:,}"
        raise DataError(
            f"{dump.where}: {display(dump.path)}: {cut or 'the XML ends without </mediawiki>'}, after "
            f"{after}, byte {position:,} of {dump.path.stat().st_size:,}. The file is truncated or damaged: "
            f"download it again, and compare its SHA-1."
        )


def pages(xml: bytes) -> Iterator[tuple[Page | BrokenPage, int]]:
    """Yield (page, position in `xml` where it ends) for each page in a chunk, parsing each separately."""
    position = 0
    while match := PAGE_BEGINS.search(xml, position):
        end = xml.find(PAGE_ENDS, match.start())
        following = PAGE_BEGINS.search(xml, match.end())
        if end < 0 or (following is not None and following.start() < end):
            position = following.start() if following else len(xml)
            broken = BrokenPage(_name(_title(xml[match.start() : position])), "it has no </page>")
            yield broken, position
            continue
        position = end + len(PAGE_ENDS)
        yield _page(xml[match.start() : position]), position


def _page(xml: bytes) -> Page | BrokenPage:
    from lxml import etree

    try:
        page = _parse(xml)
    except etree.XMLSyntaxError as error:
        # Omit lxml's line number, which counts from the start of the page; the title identifies the page.
        return BrokenPage(_name(_title(xml)), f"not well-formed XML: {str(error.msg).split(', line ')[0]}")
    revisions = page.findall("{*}revision")
    revision = max(revisions, key=_timestamp) if revisions else None
    content = None if revision is None else revision.find("{*}text")
    if revision is None or content is None:
        return BrokenPage(_name(_title(xml)), "it has no revision with a text")
    title, number = page.findtext("{*}title") or "", page.findtext("{*}ns") or "0"
    namespace = int(number) if re.fullmatch("-?[0-9]{1,9}", number) else -1
    is_redirect, model = page.find("{*}redirect") is not None, revision.findtext("{*}model") or "wikitext"
    return Page(title, namespace, is_redirect, model, content.text or "", len(revisions) - 1)


def _timestamp(revision: Any) -> tuple[str, int]:
    """Return a key that sorts revisions by time (ISO 8601 in UTC, which sorts as text), then by id."""
    number = revision.findtext("{*}id") or ""
    return revision.findtext("{*}timestamp") or "", int(number) if re.fullmatch("[0-9]{1,18}", number) else 0


@cache
def _parser() -> Any:
    from lxml import etree

    # A page has no document type, so entities cannot be expanded; these settings guarantee it.
    return etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True)


def _parse(xml: bytes) -> Any:
    from lxml import etree

    return etree.fromstring(xml, _parser())


def _whole(buffer: bytearray) -> int:
    """Return the position after the last complete page in `buffer`; 0 if no page is complete."""
    end = buffer.rfind(PAGE_ENDS)
    return 0 if end < 0 else end + len(PAGE_ENDS)


def _last_title(buffer: bytearray, whole: int) -> bytes:
    begin = buffer.rfind(b"<page", 0, whole)
    return _title(bytes(buffer[max(0, begin) : whole]))


def _title(xml: bytes) -> bytes:
    match = re.search(rb"<title>([^<]{0,1024})", xml[:4096])
    return match[1] if match else b""


def _name(title: bytes) -> str:
    return html.unescape(title.decode(errors="replace"))


class _Cut(Exception):
    """Raised if a compressed file is truncated or damaged."""


class _Block(NamedTuple):
    """Bytes of XML that belong to at most one bz2 stream."""

    content: bytes
    begin: int
    """Offset in the file of the bz2 stream that holds the bytes or, without compression, of the bytes."""
    end: int
    """Offset in the file up to which it has been read."""


def _utf8_blocks(dump: Dump, start: int, stop: int | None) -> Iterator[_Block]:
    blocks = _blocks(dump, start, stop)
    if dump.encoding == "utf-8":
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(dump.encoding)(errors="replace")
    for block in blocks:
        text = decoder.decode(block.content)
        # A lone surrogate is replaced, like any other invalid character.
        yield block._replace(content=text.encode("utf-8", errors="replace"))


def _blocks(dump: Dump, start: int, stop: int | None) -> Iterator[_Block]:
    if dump.packing is None:
        return _plain_blocks(dump.path, start, stop)
    return _bz2_blocks(dump.path, start) if dump.packing == ".bz2" else _unpacked_blocks(dump)


def _unpacked_blocks(dump: Dump) -> Iterator[_Block]:
    """Yield decompressed blocks of a compressed file that can only be read from the beginning."""
    with dump.path.open("rb", buffering=0) as file:
        stream = compression.Unpacked(file, dump.path, dump.where, dump.packing)
        while content := stream.read(READ_BYTES):
            yield _Block(content, 0, stream.consumed_bytes)


def _plain_blocks(path: Path, start: int, stop: int | None) -> Iterator[_Block]:
    with path.open("rb") as stream:
        stream.seek(start)
        while True:
            # A block never holds bytes from both sides of `stop`.
            wanted = READ_BYTES if stop is None or start >= stop else min(READ_BYTES, stop - start)
            content = stream.read(wanted)
            if not content:
                return
            yield _Block(content, start, start + len(content))
            start += len(content)


def _bz2_blocks(path: Path, start: int) -> Iterator[_Block]:
    with path.open("rb") as stream:
        stream.seek(start)
        begin, read = start, start
        decompressor = bz2.BZ2Decompressor()
        raw = b""
        while True:
            if not raw and decompressor.needs_input:
                raw = stream.read(READ_BYTES)
                read += len(raw)
                if not raw:
                    if read > begin:
                        raise _Cut(f"the bz2 stream that begins at byte {begin:,} is truncated")
                    return
            try:
                # Limit the size of the output, because 45 bytes of bz2 may decompress to a megabyte.
                content = decompressor.decompress(raw, READ_BYTES)
            except (OSError, EOFError) as error:
                raise _Cut(f"the bz2 stream that begins at byte {begin:,} is damaged ({error})") from error
            raw = b""
            if content:
                yield _Block(content, begin, read)
            if decompressor.eof:
                raw = decompressor.unused_data
                begin = read - len(raw)
                if raw and not b"BZh".startswith(raw[:3]):
                    return  # ignore other bytes after the last stream, as bzip2 does
                decompressor = bz2.BZ2Decompressor()
