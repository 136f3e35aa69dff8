"""Data passed between source, cleaning and encoding: records, parts, and counts of what is dropped."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtrain.base.terminal import shortened

if TYPE_CHECKING:
    import numpy as np


class Texts(NamedTuple):
    """A document of several keys: `text` of data.json_key, `extras` in the order of data.extra_json_keys."""

    text: str
    extras: tuple[str, ...]


class Example(NamedTuple):
    """A document that is partly in the loss: pieces, encoded separately, and whether each is in the loss."""

    pieces: tuple[tuple[str, bool], ...]


class Preference(NamedTuple):
    """Two answers to one prompt, the first one preferred: each is an example with the prompt."""

    chosen: Example
    rejected: Example

    @property
    def pieces(self) -> tuple[tuple[str, bool], ...]:
        """The pieces of both examples."""
        return self.chosen.pieces + self.rejected.pieces


class TokenIds(NamedTuple):
    """A document of token ids, with their loss mask, bool [tokens]; None if all are in the loss.

    `path` and `line` say where it was read, for a Problem.
    """

    ids: "np.ndarray"
    learnt: "np.ndarray | None" = None
    path: str = ""
    line: int | None = None


Record = str | Texts | Example | Preference | TokenIds


@dataclass(frozen=True)
class SourcePart:
    """A piece of a source that one worker reads independently. Its bounds do not depend on the workers.

    `start` and `stop` are in the reader's units (bytes, row groups, streams). A reader of a source that
    cannot be entered in the middle (a compressed file) reads it in order and passes each piece on as
    `content`.
    """

    name: str
    """Name in messages, e.g. "books.jsonl, bytes 33,554,432 to 67,108,864"."""
    path: str | None = None
    """File name in messages."""
    start: int = 0
    stop: int | None = None
    size_bytes: int = 0
    """Bytes of the source in this part, for progress: the sizes of all parts sum to total_bytes()."""
    content: Any = None
    details: tuple = ()
    """Further data that the source's reader needs; picklable."""


class Problem(NamedTuple):
    """A record that cannot be read. `line` counts from 1 (in a tally: in its part); None without lines."""

    path: str
    line: int | None
    what: str

    def shown(self) -> str:
        """Return "file:line: what"."""
        return f"{self.path}{'' if self.line is None else f':{self.line}'}: {self.what}"


COUNTERS = ("dropped", "unread_keys", "unknown_templates")
"""The counters of a Tally."""
NAMED_PROBLEMS = 3
LISTED_PROBLEMS = 10_000
PROBLEM_CHARS = 800
MOST_KEYS = 200
"""Keys that a part counts by name; some records have others in every line."""
OTHER_KEYS = "(other keys)"
MOST_TEMPLATES = 50
"""Most frequent names of templates without a known text that a part, and a source, keep."""


@dataclass
class Tally:
    """Counts made while reading one part."""

    records: int = 0
    """Records read, broken ones included."""
    lines: int = 0
    """Lines of the part, from which the lines of its file's next part are numbered: see Problem.line."""
    broken: int = 0
    problems: list[Problem] = field(default_factory=list)
    """The first LISTED_PROBLEMS."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Skipped records by reason: those that a rule dropped and broken ones."""
    separators: int = 0
    """Lines that separate documents, in text that is split at such lines."""
    sentences: int = 0
    """Sentences of rewritten text (wikitext), with the dropped ones; 0 if nothing is rewritten."""
    dropped_sentences: int = 0
    """Sentences that were dropped because a template in them cannot be evaluated."""
    unknown_templates: Counter[str] = field(default_factory=Counter)
    """Occurrences of templates that cannot be evaluated, by name."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """{unread key (sources/keys.py): kept records in which it holds a value}"""

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        problems = [list(problem) for problem in self.problems]
        counts = {name: dict(getattr(self, name)) for name in COUNTERS}
        return {**vars(self), "problems": problems, **counts}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Tally":
        """Return the tally that to_dict() returned."""
        problems = [Problem(*problem) for problem in value["problems"]]
        counts = {name: Counter(value[name]) for name in COUNTERS}
        return cls(**{**value, "problems": problems, **counts})

    def add_sentences(self, other: "Tally") -> None:
        """Add another tally's counts of sentences."""
        self.sentences += other.sentences
        self.dropped_sentences += other.dropped_sentences
        self.unknown_templates.update(other.unknown_templates)

    def add_unread(self, keys: Iterable[str], records: int = 1) -> None:
        """Count unread keys in so many records; from MOST_KEYS on, new ones share one name."""
        counts = self.unread_keys
        for key in keys if records else ():
            counts[key if key in counts or len(counts) < MOST_KEYS else OTHER_KEYS] += records

    def add_broken(self, path: str, line: int | None, what: str, reason: str = "broken_record") -> None:
        """Count a broken record, and keep the problem, cut to PROBLEM_CHARS, if it is among the first."""
        self.broken += 1
        self.dropped[reason] += 1
        if len(self.problems) < LISTED_PROBLEMS:
            self.problems.append(Problem(path, line, shortened(what, PROBLEM_CHARS)))


BROKEN_RECORDS = "broken-records.jsonl"
