"""Data passed between reading, cleaning and encoding: records, parts, and counts of dropped records."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtrain.base.text.terminal import shortened

if TYPE_CHECKING:
    import numpy as np


class Texts(NamedTuple):
    """A document with several texts: one under data.json_key, the others under data.extra_json_keys.

    `extras` has the order of data.extra_json_keys.
    """

    text: str
    extras: tuple[str, ...]


class Example(NamedTuple):
    """A document of which only parts are in the loss."""

    pieces: tuple[tuple[str, bool], ...]
    """Pieces of the text in order, as (text, whether it is in the loss). Each piece is encoded separately."""


class Preference(NamedTuple):
    """Two answers to one prompt, the preferred one first. Each is an example that includes the prompt."""

    chosen: Example
    rejected: Example

    @property
    def pieces(self) -> tuple[tuple[str, bool], ...]:
        """The pieces of both examples."""
        return self.chosen.pieces + self.rejected.pieces


class TokenIds(NamedTuple):
    """A document of token ids. `path` and `line` are its location in the source, for a Problem."""

    ids: "np.ndarray"
    learnt: "np.ndarray | None" = None
    """Loss mask of the document, bool [tokens]; None means that all tokens are in the loss."""
    path: str = ""
    line: int | None = None


Record = str | Texts | Example | Preference | TokenIds


@dataclass(frozen=True)
class SourcePart:
    """A range of a source that one worker reads independently.

    The bounds of parts do not depend on the number of workers. `start` and `stop` are in the reader's units
    (bytes, row groups, record batches). A source that can only be read from its beginning (a compressed file)
    is read in order, and each part carries its bytes in `content`.
    """

    name: str
    """Name in messages, e.g. "books.jsonl, bytes 33,554,432 to 67,108,864"."""
    path: str | None = None
    """File name in messages."""
    start: int = 0
    stop: int | None = None
    size_bytes: int = 0
    """Bytes of the source in this part, for progress; the sizes of all parts add up to total_bytes()."""
    content: Any = None
    details: tuple = ()
    """Further picklable data that the source's reader needs."""


class Problem(NamedTuple):
    """A record that cannot be read.

    `line` counts from 1; in a Tally, it counts within the part. It is None for files without lines.
    """

    path: str
    line: int | None
    what: str

    def with_place(self) -> str:
        """Return "file:line: what", or "file: what" if there is no line number."""
        return f"{self.path}{'' if self.line is None else f':{self.line}'}: {self.what}"


COUNTERS = ("dropped", "unread_keys", "unknown_templates")
"""The counters of a Tally."""
NAMED_PROBLEMS = 3
LISTED_PROBLEMS = 10_000
PROBLEM_CHARS = 800
MOST_KEYS = 200
"""Maximum number of keys that a part counts by name; in some data, every line has different keys."""
OTHER_KEYS = "(other keys)"
MOST_TEMPLATES = 50
"""Maximum number of unevaluated templates that are counted by name, per part and per source."""


@dataclass
class Tally:
    """Counts of what was found while reading one part."""

    records: int = 0
    """Number of records read, including broken ones."""
    lines: int = 0
    """Lines in the part; the next part of the file continues the numbering (Problem.line)."""
    broken: int = 0
    problems: list[Problem] = field(default_factory=list)
    """The first LISTED_PROBLEMS broken records."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of skipped records by reason: dropped by a rule, or broken."""
    separators: int = 0
    """Number of separator lines, in text that is split into documents at these lines."""
    sentences: int = 0
    """Sentences of the text converted from wikitext, including dropped ones; 0 for all other sources."""
    dropped_sentences: int = 0
    """Sentences that were dropped because a template in them cannot be evaluated."""
    unknown_templates: Counter[str] = field(default_factory=Counter)
    """Occurrences of templates that cannot be evaluated, by name."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """For each key that was not read (sources/keys.py): the number of kept records with a value under it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a JSON object."""
        problems = [list(problem) for problem in self.problems]
        counts = {name: dict(getattr(self, name)) for name in COUNTERS}
        return {**vars(self), "problems": problems, **counts}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Tally":
        """Rebuild a tally from the result of to_dict()."""
        problems = [Problem(*problem) for problem in value["problems"]]
        counts = {name: Counter(value[name]) for name in COUNTERS}
        return cls(**{**value, "problems": problems, **counts})

    def add_sentences(self, other: "Tally") -> None:
        """Add another tally's counts of sentences and of templates that cannot be evaluated."""
        self.sentences += other.sentences
        self.dropped_sentences += other.dropped_sentences
        self.unknown_templates.update(other.unknown_templates)

    def add_unread(self, keys: Iterable[str], records: int = 1) -> None:
        """Add `records` to the count of each unread key; new keys beyond MOST_KEYS share one count."""
        counts = self.unread_keys
        for key in keys if records else ():
            counts[key if key in counts or len(counts) < MOST_KEYS else OTHER_KEYS] += records

    def add_broken(self, path: str, line: int | None, what: str, reason: str = "broken_record") -> None:
        """Count a broken record, and keep its problem if it is one of the first LISTED_PROBLEMS."""
        self.broken += 1
        self.dropped[reason] += 1
        if len(self.problems) < LISTED_PROBLEMS:
            self.problems.append(Problem(path, line, shortened(what, PROBLEM_CHARS)))


BROKEN_RECORDS = "broken-records.jsonl"
