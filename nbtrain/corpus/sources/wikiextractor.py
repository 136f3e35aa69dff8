"""What wikiextractor --json has written: JSON lines, in files AA/wiki_00, AA/wiki_01, ..., with -c as
.bz2."""

from nbtrain.corpus.sources.jsonl import JsonlReader


class WikiextractorReader(JsonlReader):
    """Files named wiki_*, of any suffix."""

    kind = "wikiextractor"
    # Its articles without text are redirects and pages of templates alone.
    drops_empty = True

    def is_wanted(self, name: str) -> bool:
        return name.startswith("wiki_")

    def nothing_found(self) -> str:
        return "no file wiki_00, wiki_01, ... as wikiextractor writes them"
