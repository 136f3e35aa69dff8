"""Reads the JSON lines that wikiextractor --json writes: AA/wiki_00, AA/wiki_01, ... (.bz2 with -c)."""

from nbtrain.corpus.sources.jsonl import JsonlReader


class WikiextractorReader(JsonlReader):
    """Reads files named wiki_*, with any suffix."""

    kind = "wikiextractor"
    # Articles without text are redirects, or pages that consist only of templates.
    drops_empty = True

    def is_wanted(self, name: str) -> bool:
        return name.startswith("wiki_")

    def wanted_files(self) -> str:
        return "file named wiki_00, wiki_01, ..., as wikiextractor writes"
