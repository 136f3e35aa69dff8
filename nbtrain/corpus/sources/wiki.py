"""Reads the articles of a Wikipedia dump as plain text, title first.

    title, an empty line, text        one document per article (wiki/article/walker.py lists what it keeps)

Redirects, pages in other namespaces and pages that are not wikitext are dropped by rule, and pages without a
word are dropped as empty. Multistream .bz2 files and .xml files are read in parallel. A single-stream .bz2
file, a UTF-16 file or a source with max_articles must be read in order; workers then only convert wikitext
to text.
"""

from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.errors import DataError
from nbtrain.base.text.addresses import redacted
from nbtrain.base.workspace import display, resolve
from nbtrain.corpus import sentences
from nbtrain.corpus.files.folder import is_file
from nbtrain.corpus.optional import optional
from nbtrain.corpus.records import MOST_TEMPLATES, SourcePart, Tally
from nbtrain.corpus.sources.base import SourceReader
from nbtrain.corpus.wiki import dump
from nbtrain.corpus.wiki.article.walker import Walker
from nbtrain.corpus.wiki.templates.call import Wiki

if TYPE_CHECKING:
    from nbtrain.corpus.http import Downloaded

# Version of the conversion to text, increased when the same dump yields different text. Dumps are then
# extracted again, but existing datasets stay valid.
EXTRACTION = 4
OLDER_REVISION = "older_revision"

FILE_BYTES, COMPRESSED_BYTES = 16 << 20, 4 << 20
"""Bytes per part of a plain and of a compressed file. A part has about 1,000 to 2,000 articles."""
PIECE_BYTES = 8 << 20


class WikiReader(SourceReader):
    """Reads the articles of one dump, on disk or downloaded."""

    kind = "wiki"
    is_extracted = True

    def accepts_drift(self, then: dict[str, Any], now: dict[str, Any]) -> bool:
        return {**then, "extraction": None} == {**now, "extraction": None}

    def parts(self) -> Iterator[SourcePart]:
        found, most = dump.open_dump(self._path(), self.where), self.config.max_articles
        path, shown, total = str(found.path), display(found.path), found.path.stat().st_size
        part_bytes = FILE_BYTES if found.packing is None else COMPRESSED_BYTES
        points = [0] if most is not None else dump.entry_points(found, part_bytes)
        if len(points) > 1 or (total <= part_bytes and most is None):
            for start, stop in zip(points, [*points[1:], total]):
                name, end = f"{shown}, bytes {start:,} to {stop:,}", None if stop == total else stop
                yield SourcePart(name, path, start, end, stop - start, details=(found,))
            return
        read = kept = 0
        for piece in dump.pieces(found, piece_bytes=PIECE_BYTES):
            xml, kept = (piece.xml, 0) if most is None else self._first_articles(piece.xml, kept)
            name, num_bytes = f"{shown}, up to byte {piece.position:,}", piece.position - read
            yield SourcePart(name, path, size_bytes=num_bytes, content=xml, details=(found,))
            read = piece.position
            if kept == most:
                return

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        (found,) = part.details
        wiki = Wiki(self._language(found), found.site.get("sitename") or "Wikipedia")
        walker = Walker(found.namespaces, wiki, sentences.segments)
        for page in self._pages(found, part):
            tally.records += 1
            if isinstance(page, dump.BrokenPage):
                tally.add_broken(str(part.path), None, f"page {page.title!r}: {page.what}", "broken_page")
                continue
            if page.older_revisions:
                tally.records += page.older_revisions
                tally.dropped[OLDER_REVISION] += page.older_revisions
            if reason := self._left_out(page):
                tally.dropped[reason] += 1
                continue
            try:
                text = walker.text(page.text, page.title)
            except Exception as error:  # no markup of one page may prevent reading the other pages
                what = f"page {page.title!r}: its wikitext cannot be read ({type(error).__name__}: {error})"
                tally.add_broken(str(part.path), None, what, "broken_page")
                continue
            if text:
                yield f"{page.title}\n\n{text}"
            else:
                tally.dropped["empty"] += 1
        tally.sentences += walker.sentences
        tally.dropped_sentences += walker.dropped_sentences
        tally.unknown_templates.update(dict(walker.unknown_templates.most_common(MOST_TEMPLATES)))

    def _language(self, found: dump.Dump) -> str:
        """Return the language of a dump, which determines how templates are read; "" if it is unknown."""
        if found.language:
            return found.language
        if name := found.site.get("dbname", "").removesuffix("wiki"):
            return name.replace("_", "-")
        return self.config.language if self.config.path is None else ""

    def _pages(self, found: dump.Dump, part: SourcePart) -> Iterator[dump.Page | dump.BrokenPage]:
        pieces = (piece.xml for piece in dump.pieces(found, part.start, part.stop, dump.READ_BYTES))
        for xml in pieces if part.content is None else [part.content]:
            for page, _ in dump.pages(xml):
                yield page

    def _left_out(self, page: dump.Page) -> str | None:
        """Return the name of the rule by which a page is skipped; None if the page is kept."""
        if page.namespace not in self.config.namespaces:
            return "other_namespace"
        if page.is_redirect:
            return "redirect"
        if page.model != "wikitext":
            return "not_wikitext"
        return None

    def _first_articles(self, xml: bytes, kept: int) -> tuple[bytes, int]:
        """Return (`xml` up to the end of article number max_articles, number of articles kept so far).

        `kept` is the number of articles that were kept from the dump before `xml`.
        """
        for page, end in dump.pages(xml):
            if isinstance(page, dump.Page) and self._left_out(page) is None:
                kept += 1
                if kept == self.config.max_articles:
                    return xml[:end], kept
        return xml, kept

    def _path(self) -> Path:
        if self.config.path is not None:
            path = resolve(self.config.path)
            if not is_file(path, self.where):
                raise DataError(
                    f"{self.where}: path = {self.config.path!r}: no such file ({display(path)}). Relative "
                    f"paths start at the workspace; remove path to download a dump."
                )
            return path
        # Imported here, because its HTTP client takes longer to import than everything else in this module.
        from nbtrain.corpus.wiki import download

        return download.folder() / self._downloaded().file

    def _downloaded(self, with_file: bool = True) -> "Downloaded":
        from nbtrain.corpus.wiki import download

        look = download.find if with_file else download.recorded_dump
        found = look(self.config.language, self.config.date, self.config.sha1)
        if found is None or self.config.sha1 not in (None, found.sha1):
            raise DataError(
                f"{self.where}: the {download.database(self.config.language)} dump of date "
                f"{self.config.date} is not in {display(download.folder())}. Run `nbtrain data download` to "
                f"download it."
            )
        return found

    @property
    def is_downloaded(self) -> bool:
        return self.config.path is None or self.config.sha1 is not None

    def download(self) -> str | None:
        from nbtrain.corpus.wiki import download

        config = self.config
        if config.path is not None:
            if config.sha1 is not None and download.check_sha1(self._path(), config.sha1, self.where):
                return f"{display(self._path())}: the SHA-1 matches the configured value"
            return None
        asked = (config.language, config.date, config.mirror, config.sha1)
        found, is_new = download.download(*asked, self.where)
        path = display(download.folder() / found.file)
        if not is_new:
            return None
        return f"{path}: downloaded from {found.url}; its SHA-1 {found.sha1[:12]} matches the published value"

    def check_dependencies(self) -> None:
        for package in ("lxml", "sentencex"):
            optional(package, f"{self.where}: kind: wiki")

    def fingerprint(self) -> dict[str, Any]:
        if self.config.path is not None:
            path = self._path()
            size_and_time = [path.stat().st_size, path.stat().st_mtime_ns]
            return {"files": {path.name: size_and_time}, "extraction": EXTRACTION}
        # The dump file may have been removed after its text was extracted.
        found = self._downloaded(with_file=False)
        return {"files": {found.file: found.sha1}, "extraction": EXTRACTION}

    def total_bytes(self) -> int | None:
        return self._path().stat().st_size if self.config.max_articles is None else None

    def licence(self) -> str:
        return "CC-BY-SA-4.0"

    def attribution(self) -> str:
        site: dict[str, str] = {}
        with suppress(DataError):
            site = dump.open_dump(self._path()).site
        name, wiki = site.get("sitename", "Wikipedia"), site.get("dbname")
        if wiki is None and self.config.path is None:
            from nbtrain.corpus.wiki import download

            wiki = download.database(self.config.language)
        place = f" ({', '.join(part for part in (wiki, site.get('base')) if part)})" if wiki else ""
        return f"{name}{place}, by its contributors; each page's history names them."

    def describe(self) -> dict[str, Any]:
        described = {**super().describe(), "mirror": redacted(self.config.mirror)}
        if self.config.path is None:
            found = self._downloaded(with_file=False)
            described |= {"date": found.date, "url": found.url, "sha1": found.sha1}
        else:  # a dump at a given path does not use these settings
            for key in ("language", "date", "mirror"):
                del described[key]
        described["software"] = {name: metadata.version(name) for name in ("lxml", "sentencex")}
        return described
