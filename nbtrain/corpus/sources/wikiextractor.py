"""JSON lines as wikiextractor --json writes them: AA/wiki_00, AA/wiki_01, ..., .bz2 with its option -c."""

from nbtrain.corpus.sources.jsonl import JsonlReader


class WikiextractorReader(JsonlReader):
    """Files named wiki_*, of any suffix."""

    kind = "wikiextractor"
    # Articles without text are redirects, and pages of nothing but templates.
    drops_empty = True

    def is_wanted(self, name: str) -> bool:
        return name.startswith("wiki_")

    def wanted_files(self) -> str:
        return "file wiki_00, wiki_01, ... as wikiextractor writes them"
