"""The wiki source: articles as documents, equal for parallel and sequential reads; some pages are dropped."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import bz2
import gzip
import hashlib
import itertools
import lzma
import pickle
import sys

import pytest
import zstandard

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.config.sections.sources import WikiSource, text_settings
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources import wiki
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.wiki import dump
from tests.corpus import made
from tests.corpus.wiki.conftest import dump_xml, mirror, multistream, page  # noqa: F401 (a fixture)

WHERE = "run.yaml:7: data.sources[0]"
PAGES = [
    page("One", "'''One''' is [[a|first]].{{x}}"),
    page("Move", "#REDIRECT [[One]]", redirect=True),
    page("Talk:One", "a", namespace=1),
    page("Data", "{}", model="json"),
    page("Empty", "{{x}}\n[[Kategorie:Y]]"),
    page("Two", "Second."),
    page("Three", "Third."),
] * 5


def reader(**settings):
    return open_source(WikiSource(kind="wiki", **settings), WHERE)


def read(source) -> tuple[list[str], Tally]:
    """Read part by part as workers do; each reader and part is pickled."""
    tally, documents = Tally(), []
    for part in source.parts():
        own, given = pickle.loads(pickle.dumps((source, part)))
        documents += own.read(given, tally)
    return documents, tally


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(wiki, "COMPRESSED_BYTES", 100)
    monkeypatch.setattr(wiki, "FILE_BYTES", 3000)
    monkeypatch.setattr(wiki, "PIECE_BYTES", 2000)
    monkeypatch.setattr(dump, "READ_BYTES", 900)


@pytest.fixture(params=["plain", "one stream", "multistream", "gzip", "xz", "zstd"])
def path(request, workspace) -> str:
    """Write a dump in each supported format; readers recognise the format by its bytes."""
    content = {
        "plain": lambda: dump_xml(PAGES),
        "one stream": lambda: bz2.compress(dump_xml(PAGES)),
        "multistream": lambda: multistream(PAGES, a_stream=4),
        "gzip": lambda: gzip.compress(dump_xml(PAGES)),
        "xz": lambda: lzma.compress(dump_xml(PAGES)),
        "zstd": lambda: zstandard.ZstdCompressor().compress(dump_xml(PAGES)),
    }[request.param]()
    (workspace / "test.xml").write_bytes(content)
    return "test.xml"


def test_documents(path):
    """A document is the title, an empty line and the text; dropped pages are counted by rule.

    The counts of the parts add up to the file's.
    """
    source = reader(path=path)
    documents, tally = read(source)
    assert documents == ["One\n\nOne is first.", "Two\n\nSecond.", "Three\n\nThird."] * 5
    assert tally.records == 35
    assert tally.dropped == {"redirect": 5, "other_namespace": 5, "not_wikitext": 5, "empty": 5}
    parts = list(source.parts())
    assert len(parts) > 1
    assert sum(part.size_bytes for part in parts) == source.total_bytes()
    assert parts == list(source.parts())
    assert list(source.documents()) == documents


def test_namespaces(path):
    """The configured namespaces are read."""
    documents, _ = read(reader(path=path, namespaces=[1]))
    assert documents == ["Talk:One\n\na"] * 5


@pytest.mark.parametrize("number", [1, 4, 7, 20])
def test_max_articles(path, number):
    """max_articles counts articles in the dump's order, with the same result in every format of the dump."""
    documents, tally = read(reader(path=path, max_articles=number))
    articles = ["One\n\nOne is first.", "", "Two\n\nSecond.", "Three\n\nThird."] * 5
    assert documents == [one for one in articles[:number] if one]
    assert len(documents) + tally.dropped["empty"] == number
    assert reader(path=path, max_articles=number).total_bytes() is None


def test_several_revisions(workspace):
    """The newest revision of a page is read, wherever it is in the dump, and the others are counted."""

    def revision(text: str, **fields: str) -> str:
        tags = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
        return f"<revision>{tags}<text>{text}</text></revision>"

    newest = revision("new", id="3", timestamp="2024-05-02T00:00:00Z")
    old = revision("old", id="9", timestamp="2023-12-31T23:59:59Z")
    pages = [
        f"<page><title>{number}</title><ns>0</ns>{''.join(order)}</page>"
        for number, order in enumerate(itertools.permutations([newest, old, revision("no time")]))
    ]
    pages.append(
        f"<page><title>Same time</title><ns>0</ns>{revision('b', id='10', timestamp='x')}"
        f"{revision('a', id='9', timestamp='x')}</page>"
    )
    (workspace / "test.xml").write_bytes(dump_xml([*pages, PAGES[0]]))
    documents, tally = read(reader(path="test.xml"))
    assert documents == [
        *(f"{number}\n\nnew" for number in range(6)),
        "Same time\n\nb",
        "One\n\nOne is first.",
    ]
    assert tally.records == 21
    assert tally.dropped == {"older_revision": 13}


def test_other_rules_of_text_keep_a_dataset(path):
    """A change in nbtrain's extraction rules keeps an existing dataset valid; a
    change of the file does not.
    """
    source = reader(path=path)
    now = source.fingerprint()
    assert source.accepts_drift({**now, "extraction": 1}, now)
    assert not source.accepts_drift({**now, "files": {"test.xml": [1, 2]}}, now)


def test_broken_pages(workspace, monkeypatch):
    """Pages of malformed XML, and pages on which the wikitext walker fails, are
    counted and reported by title.
    """
    pages = [PAGES[0], PAGES[5].replace("Second.", "&bad;"), PAGES[6].replace("Third.", "fails")]
    (workspace / "test.xml").write_bytes(dump_xml(pages))
    text = wiki.Walker.text

    def failing(self, wikitext, title):
        if wikitext == "fails":
            raise RecursionError("too deep")
        return text(self, wikitext, title)

    monkeypatch.setattr(wiki.Walker, "text", failing)
    documents, tally = read(reader(path="test.xml"))
    assert documents == ["One\n\nOne is first."]
    assert (tally.records, tally.broken, tally.dropped) == (3, 2, {"broken_page": 2})
    assert [problem.what.split(" (")[0] for problem in tally.problems] == [
        "page 'Two': not well-formed XML: Entity 'bad' not defined",
        "page 'Three': its wikitext cannot be read",
    ]


def test_cut_short(workspace):
    """A truncated dump is an error that names the field of the run YAML, after the
    documents before the damage.
    """
    content = dump_xml(PAGES)
    (workspace / "test.xml.bz2").write_bytes(bz2.compress(content[: len(content) // 2]))
    source, documents = reader(path="test.xml.bz2"), []
    with pytest.raises(DataError) as caught:
        for part in source.parts():
            documents += source.read(part, Tally())
    assert len(documents) > 5
    assert str(caught.value).startswith(
        f"{WHERE}: test.xml.bz2: the XML ends without </mediawiki>, after page "
    )


def test_a_dump_in_a_closed_folder(workspace, closed):
    """A dump without read permission is not reported as missing."""
    (workspace / "in").mkdir()
    closed("in")
    with pytest.raises(DataError) as caught:
        list(reader(path="in/a.xml").parts())
    assert str(caught.value) == f"{WHERE}: in/a.xml: cannot be read: Permission denied."


def test_missing_files(workspace):
    """A missing path, and a dump that is not downloaded yet, are errors that give the next step."""
    with pytest.raises(DataError) as caught:
        list(reader(path="no.xml").parts())
    assert str(caught.value) == (
        f"{WHERE}: path = 'no.xml': no such file (no.xml). Relative paths start at the workspace; remove "
        f"path to download a dump."
    )
    with pytest.raises(DataError) as caught:
        reader(language="bg").fingerprint()
    assert str(caught.value) == (
        f"{WHERE}: the bgwiki dump of date latest is not in data/download. Run `nbtrain data download` to "
        "download it."
    )


def test_without_lxml(path, monkeypatch):
    """Without lxml, the error includes the pip command."""
    monkeypatch.setitem(sys.modules, "lxml", None)
    with pytest.raises(DataError) as caught:
        reader(path=path).check_dependencies()
    assert str(caught.value) == (
        f"{WHERE}: kind: wiki needs the package lxml, which is not installed. Install it with "
        f"`{install_command('data')}`."
    )


def test_a_downloaded_dump(workspace, mirror):  # noqa: F811
    """A downloaded dump is described with its date, checksum and licence, and without secrets."""
    name = mirror.add_dump(multistream(PAGES), date="20260201", kind="pages-articles-multistream")
    source = reader(language="test", mirror=f"{mirror.address}?key=hush")
    assert source.is_downloaded
    assert source.download().startswith(
        f"data/download/{name}: downloaded from {mirror.address}/testwiki/20260201/{name}?key=***; its SHA-1 "
    )
    assert source.download() is None
    assert len(read(source)[0]) == 15
    described = source.describe()
    assert described["date"] == "20260201"
    assert described["mirror"] == f"{mirror.address}?key=***"
    assert described["sha1"] == described["fingerprint"]["files"][name]
    assert described["licence"] == "CC-BY-SA-4.0"
    assert described["attribution"] == (
        "Wikipedia (testwiki, https://test.example/), by its contributors; each page's history names them."
    )
    assert "hush" not in str(described) + str(text_settings(source.config))
    (workspace / "data" / "download" / name).unlink()
    assert source.fingerprint() == described["fingerprint"]
    assert source.describe()["attribution"].startswith("Wikipedia (testwiki), by its contributors")
    assert source.download() is not None


def test_a_brought_dump(workspace):
    """A user's own file is checked against the checksum if one is set; its fingerprint is size and time."""
    (workspace / "test.xml").write_bytes(dump_xml(PAGES))
    assert not reader(path="test.xml").is_downloaded
    right = hashlib.sha1((workspace / "test.xml").read_bytes()).hexdigest()
    checked = reader(path="test.xml", sha1=right)
    assert checked.is_downloaded
    assert checked.download() == "test.xml: the SHA-1 matches the configured value"
    assert checked.download() is None
    with pytest.raises(DataError, match=f"the setting sha1 is {'0' * 40}"):
        reader(path="test.xml", sha1="0" * 40).download()
    described = reader(path="test.xml", licence="mine").describe()
    assert not {"language", "date", "mirror"} & set(described)
    assert described["licence"] == "mine"
    before = reader(path="test.xml").fingerprint()
    (workspace / "test.xml").write_bytes(dump_xml(PAGES[:5]))
    assert reader(path="test.xml").fingerprint() != before


def test_many_articles(workspace, monkeypatch):
    """Every article of a generated dump gives its title and text, also in UTF-16; other pages are dropped."""
    monkeypatch.undo()
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(workspace))
    expected = [f"{title}\n\n{text}" for title, _, text in made.articles()]
    content = dump_xml(made.dump_pages())
    (workspace / "made.xml.bz2").write_bytes(bz2.compress(content))
    (workspace / "wide.xml").write_bytes(content.decode().encode("utf-16"))
    for path in ("made.xml.bz2", "wide.xml"):
        documents, tally = read(reader(path=path))
        assert documents == expected
        assert tally.records == 72


def test_samples(shared_data, monkeypatch):
    """Real dumps give the title and text of their articles."""
    monkeypatch.undo()
    folder = shared_data / "wiki"
    documents, tally = read(reader(path=str(folder / "bgwiki-pages-articles-sample-utf16.xml.bz2")))
    assert len(documents) == 1 and tally.records == 3
    assert documents[0].startswith("Григориански календар\n\nГригорианският календар (понякога наричан")
    assert "Файл:" not in documents[0] and "Категория:" not in documents[0]
    documents, _ = read(reader(path=str(folder / "enwiki-table-markup.xml.bz2")))
    assert len(documents) == 5
