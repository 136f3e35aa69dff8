"""Reading pages of dumps: where reading can start, and errors about truncated and other files."""

import bz2
import gzip
import itertools
import random
from pathlib import Path

import pytest
import zstandard

from nbtrain.base.errors import DataError
from nbtrain.corpus.wiki import dump
from tests.corpus import made
from tests.corpus.wiki.conftest import dump_xml, multistream, page

PAGES = [page(f"Page {number}", f"Text {number} & <b>more</b> " * 20) for number in range(60)]


def write(folder: Path, content: bytes, name: str = "test.xml") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, part_bytes: int | None = None, piece_bytes: int = 3000) -> list:
    """Return all pages of a dump, from the beginning or part by part."""
    found = dump.open_dump(path, "here")
    points = [0] if part_bytes is None else dump.entry_points(found, part_bytes)
    return [
        one
        for start, stop in zip(points, [*points[1:], None])
        for piece in dump.pieces(found, start, stop, piece_bytes)
        for one, _ in dump.pages(piece.xml)
    ]


def refusal(path: Path, **settings) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **settings)
    return str(caught.value)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    """Make reads small, so that they end inside pages and tags."""
    monkeypatch.setattr(dump, "READ_BYTES", 700)


def test_a_page(workspace):
    """Title, namespace, redirect, model and text are read from their elements; entities are decoded once."""
    pages = [
        page("A & B", "x < y &amp; '''z'''"),
        page("Talk:C", "", namespace=1, redirect=True, model="json"),
    ]
    assert read(write(workspace, dump_xml(pages))) == [
        dump.Page("A & B", 0, False, "wikitext", "x < y &amp; '''z'''"),
        dump.Page("Talk:C", 1, True, "json", ""),
    ]


def test_siteinfo(workspace):
    """The site's name and namespaces are read; a dump may have neither."""
    found = dump.open_dump(write(workspace, dump_xml(PAGES)))
    assert found.namespaces == {0: "", 6: "Datei", 14: "Kategorie"}
    assert found.site["dbname"] == "testwiki"
    path = write(workspace, dump_xml(PAGES, siteinfo=""))
    assert dump.open_dump(path, "here").namespaces == {}
    assert len(read(path)) == 60


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16(workspace, encoding):
    """UTF-16 is read from the beginning, with and without a byte order mark."""
    content = dump_xml([page("Ж", "те𝄞ст " * 400)], siteinfo="").decode().encode(encoding)
    path = write(workspace, bz2.compress(content), "a.xml.bz2")
    assert [one.text for one in read(path, part_bytes=1)] == ["те𝄞ст " * 400]


def test_every_entry_point_gives_the_same_pages(workspace):
    """Reading from any byte of an .xml, or any stream of a .bz2, neither loses nor repeats a page."""
    content = dump_xml(PAGES)
    plain = write(workspace, content)
    whole = read(plain)
    assert len(whole) == 60
    for part_bytes in (1, 97, 640, 10_000):
        if part_bytes > 1 or len(content) < 100_000:
            assert read(plain, part_bytes=max(part_bytes, 37)) == whole
    generator = random.Random(5)
    tag = content.index(b"<page>", 20_000)
    for _ in range(8):
        cuts = sorted({tag, tag + 3, tag + 6, *generator.sample(range(1, len(content)), 12)})
        streams = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)])]
        path = write(workspace, b"".join(map(bz2.compress, streams)), "cut.xml.bz2")
        assert len(dump.entry_points(dump.open_dump(path, "here"), 1)) == len(streams)
        assert read(path, part_bytes=1) == whole


def test_multistream(workspace):
    """A multistream dump, as Wikipedia writes it, is split into parts of at least the requested size."""
    path = write(workspace, multistream(PAGES), "m.xml.bz2")
    assert read(path, part_bytes=1) == read(path, part_bytes=600) == read(path)
    points = dump.entry_points(dump.open_dump(path, "here"), 600)
    assert len(points) > 2
    assert all(after - before >= 600 for before, after in itertools.pairwise(points))


@pytest.mark.parametrize("name", ["a.xml.zst", "dump"])
def test_a_dump_that_pzstd_has_written(workspace, name):
    """A dump compressed by pzstd is read: it begins with a skippable frame and has
    a frame for each thread.
    """
    content = dump_xml(PAGES)
    pack = zstandard.ZstdCompressor().compress
    frames = bytes.fromhex("502a4d18 04000000 39000000")
    for start in range(0, len(content), 9000):
        frames += pack(content[start : start + 9000])
    assert [one.title for one in read(write(workspace, frames, name))] == [
        f"Page {number}" for number in range(60)
    ]


def test_one_stream_has_one_entry(workspace):
    """A .bz2 of one stream can only be read from its beginning."""
    path = write(workspace, bz2.compress(dump_xml(PAGES)), "s.xml.bz2")
    assert dump.entry_points(dump.open_dump(path, "here"), 1) == [0]


def test_a_broken_page_costs_no_other(workspace):
    """A page that is malformed, not UTF-8 or without an end is reported, and the next page is read."""
    bad = [
        PAGES[0].replace("Text 0", "&undeclared;", 1).encode(),
        PAGES[1].encode().replace(b"Text 1", b"\xff\xfe", 1),
        PAGES[2].replace("  </page>\n", "").encode(),
        PAGES[3].replace("<text", "<other").replace("</text", "</other").encode(),
        PAGES[4].encode(),
    ]
    content = dump_xml([]).replace(b"</mediawiki>", b"".join(bad) + b"</mediawiki>")
    *broken, last = read(write(workspace, content))
    assert [(one.title, one.what[:19]) for one in broken] == [
        ("Page 0", "not well-formed XML"),
        ("Page 1", "not well-formed XML"),
        ("Page 2", "it has no </page>"),
        ("Page 3", "it has no revision "),
    ]
    assert last.title == "Page 4"


def test_cut_short(workspace):
    """A truncated dump returns all complete pages and then raises an error that says how far it was read."""
    xml = dump_xml(PAGES)
    half = xml[: xml.index(b"Text 30 ") + 5]
    path = write(workspace, half)
    found = dump.open_dump(path, "here")
    pages = []
    with pytest.raises(DataError) as caught:
        for piece in dump.pieces(found, piece_bytes=3000):
            pages += [page for page, _ in dump.pages(piece.xml)]
    assert len(pages) == 30
    assert str(caught.value) == (
        f"here: test.xml: the XML ends without </mediawiki>, after page 'Page 29', byte {len(half):,} of "
        f"{len(half):,}. The file is truncated or damaged: download it again, and compare its SHA-1."
    )
    packed = bz2.compress(xml)
    assert refusal(write(workspace, packed[:-20], "test.xml.bz2")) == (
        "here: test.xml.bz2: the bz2 stream that begins at byte 0 is truncated. Download the dump again, and "
        "compare its SHA-1."
    )
    streams = multistream(PAGES)
    path = write(workspace, streams[:-30], "m.xml.bz2")
    assert "is truncated, after page 'Page 59'" in refusal(path)
    assert "is truncated" in refusal(path, part_bytes=600)


def test_damaged(workspace):
    """A corrupt byte in the middle of a multistream dump is reported with the stream and the page."""
    streams = bytearray(multistream(PAGES))
    second = dump.entry_points(dump.open_dump(write(workspace, bytes(streams), "m.xml.bz2")), 1)[2]
    streams[second + 60] ^= 0xFF
    said = refusal(write(workspace, bytes(streams), "m.xml.bz2"))
    assert f"m.xml.bz2: the bz2 stream that begins at byte {second:,} is damaged" in said
    assert "after page 'Page 9'" in said


def test_a_page_without_an_end_is_bounded(workspace, monkeypatch):
    """A page without an end does not fill the memory."""
    monkeypatch.setattr(dump, "MAX_PAGE_BYTES", 5000)
    content = dump_xml(PAGES[:2]).replace(b"</mediawiki>", b"<page><text>" + b"a" * 20_000)
    assert "no page ends within 0 MiB, after page 'Page 1'" in refusal(write(workspace, content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a MediaWiki dump: no XML element was found, but it must be <mediawiki>."),
        (b"<?xml version='1.0'?><html>", "its first element is <html>, but it must be <mediawiki>."),
        (
            gzip.compress(b"<mediawiki>", mtime=0)[:-9],
            "test.xml: damaged .gz file: it ends too early, after 22 bytes",
        ),
        (
            b"7z\xbc\xaf\x27\x1c",
            "test.xml: the file is a 7z archive, which is not supported (compressed text may be .gz, .zst, ",
        ),
        (
            b'<!DOCTYPE x [<!ENTITY a "b">]><mediawiki a="&a;">',
            "the file declares a document type, which a dump never does",
        ),
        (
            b"<?xml version='1.0' encoding='koi8-r'?><mediawiki>",
            "the encoding is koi8-r, but only UTF-8 and UTF-16 are supported.",
        ),
        (b"BZh9 but nothing else", "the bz2 stream that begins at byte 0 is damaged (Invalid data stream)"),
    ],
)
def test_no_dump(workspace, content, said):
    """The error about a file that is not a dump says what the file is and what to do."""
    assert said in refusal(write(workspace, content))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("siteinfo", [True, False])
def test_dumps_of_many_articles(workspace, encoding, siteinfo):
    """Every page is read once with its text, with and without a header, in UTF-8 and
    UTF-16, compressed or not.
    """
    content = dump_xml(made.dump_pages(), *([] if siteinfo else [""])).decode()
    declared = f'<?xml version="1.0" encoding="{encoding}"?>\n{content}'
    pages = read(write(workspace, bz2.compress(declared.encode(encoding)), "made.xml.bz2"))
    assert len(pages) == 72
    kept = [(one.title, one.text) for one in pages if one.namespace == 0 and not one.is_redirect]
    assert kept == [(title, wikitext) for title, wikitext, _ in made.articles()]


@pytest.mark.slow
def test_samples(shared_data, monkeypatch):
    """Real dumps are read: a shortened English one, one without a header, and one in UTF-16."""
    monkeypatch.setattr(dump, "READ_BYTES", 1 << 20)
    counts = {}
    for path in sorted((shared_data / "wiki").glob("*.bz2")):
        pages = read(path)
        counts[path.name.split("-")[0] + str(len(pages))] = sum(
            one.namespace == 0 and not one.is_redirect for one in pages
        )
    assert counts == {"bgwiki3": 1, "enwiki206": 106, "enwiki5": 5}
