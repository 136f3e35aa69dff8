"""JSON lines of wikiextractor --json: AA/wiki_00, AA/wiki_01, ..., or .bz2 files if its option -c was
used.
"""

from nbtrain.corpus.sources.jsonl import JsonlReader


class WikiextractorReader(JsonlReader):
    """Reads files named wiki_*, with any suffix."""

    kind = "wikiextractor"
    # Articles without text are redirects, and pages that consist of templates.
    drops_empty = True

    def is_wanted(self, name: str) -> bool:
        return name.startswith("wiki_")

    def wanted_files(self) -> str:
        return "file wiki_00, wiki_01, ... as wikiextractor writes them"
