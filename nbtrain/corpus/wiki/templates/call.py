"""Parses template calls {{name|arguments}} for the rules that evaluate them.

A rule returns the text that readers see, which is "" if the template shows nothing. It returns None if it
cannot determine the text; the sentence around the template is then dropped.
"""

# ruff: noqa: SIM905 (word lists read best as words)

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from nbtrain.corpus.wiki.markup import DROPPED, GAP
from nbtrain.corpus.wiki.templates.numbers import NumberFormat

# A | within a link does not separate arguments.
SEPARATOR = re.compile(r"\|(?![^\[\]]*\]\])")
NAME = re.compile(r"[^=\[\]<>\n]{0,60}")
# Parameters that affect the appearance or category of a template, but not its text.
LOOKS = frozenset(
    """
style class id date reason ref group link lk links title size color colour align width cat nocat category
categories url access-date accessdate archive-url archive-date source cite italic italics bold wrap sortable
sort debug lang label_style nolink nb template
""".split()
)


@dataclass(frozen=True)
class Wiki:
    """Information about the wiki and the current page that rules need."""

    language: str = ""
    """Language of the wiki, as in xml:lang; empty if unknown."""
    site_name: str = "Wikipedia"
    title: str = ""
    """The page's title."""

    @cached_property
    def numbers(self) -> NumberFormat | None:
        """Return the wiki's number format; None if it is unknown."""
        return NumberFormat.of(self.language)


class Call:
    """A template call: its name, and its positional (from 1) and named arguments without outer spaces."""

    __slots__ = ("after", "before", "name", "named", "wiki", "words")

    def __init__(self, name: str, rest: str | None, before: str, after: str, wiki: Wiki):
        self.name = name
        """Name in lower case, with single spaces."""
        self.words: list[str] = []
        """The positional arguments, including those written as 1=, 2=."""
        self.named: dict[str, str] = {}
        self.before = before
        """The last characters of the text before the template."""
        self.after = after
        """The first character of the text after the template."""
        self.wiki = wiki
        if rest is None:
            return
        numbered: dict[int, str] = {}
        if DROPPED in rest:
            rest = rest.replace(DROPPED, "")
        for argument in SEPARATOR.split(rest) if "]]" in rest else rest.split("|"):
            name, equals, value = argument.partition("=")
            if not equals or not NAME.fullmatch(name):
                self.words.append(argument.strip())
                continue
            name = name.strip()
            if name.isdecimal() and 0 < int(name) < 100:
                numbered[int(name)] = value.strip()
            else:
                self.named[name] = value.strip()
        for number, value in sorted(numbered.items()):
            while len(self.words) < number:
                self.words.append("")
            self.words[number - 1] = value
        while self.words and not self.words[-1]:
            self.words.pop()

    def __getitem__(self, number: int) -> str:
        """Return the positional argument `number`; "" if it is missing."""
        return self.words[number - 1] if len(self.words) >= number else ""

    def get(self, *names: str) -> str:
        """Return the first non-empty value of the named arguments `names`; "" if all are empty."""
        return next((value for name in names if (value := self.named.get(name, ""))), "")

    def has_only(self, *names: str, most: int = 99) -> bool:
        """Return whether the call has no unexpected argument that could change the text.

        At most `most` positional arguments, the named arguments `names` and the parameters in LOOKS are
        expected.
        """
        return len(self.words) <= most and all(
            name in names or name in LOOKS for name, value in self.named.items() if value
        )


Rule = Callable[[Call], str | None]


def is_yes(value: str) -> bool:
    """Return whether a parameter is switched on, by the rules of MediaWiki's Module:Yesno."""
    return value.lower() in ("y", "yes", "on", "true", "1", "t", "ja", "oui", "si", "sí", "да")


def is_known(*values: str) -> bool:
    """Return whether all values are known: none contains a template that cannot be evaluated."""
    return not any(GAP in value for value in values)


def argument(number: int, *names: str) -> Rule:
    """Return a rule that shows the first non-empty argument among `names`, or else argument `number`."""

    def rule(call: Call) -> str | None:
        return call.get(*names) or call[number]

    return rule


def last(call: Call) -> str | None:
    """Return the text of a template that shows its last positional argument."""
    return call.words[-1] if call.words else ""


def constant(text: str) -> Rule:
    """Return a rule that always shows `text`."""
    return lambda call: text


def around(before: str, after: str = "", number: int = 1, *names: str) -> Rule:
    """Return a rule that shows `before`, an argument and `after`, or nothing if the argument is empty.

    The argument is the first non-empty one among `names`, or else the positional argument `number`.
    """

    def rule(call: Call) -> str | None:
        value = call.get(*names) or call[number]
        return f"{before}{value}{after}" if value else ""

    return rule


def names(text: str) -> frozenset[str]:
    """Return the names in a text in which | and line breaks separate the names."""
    return frozenset(
        name for part in text.split("\n") for entry in part.split("|") if (name := entry.strip())
    )


def rules(names_of_rule: str | Collection[str], rule: Rule) -> dict[str, Rule]:
    """Return {name: rule} for several names, given as a collection or as a text for names()."""
    return dict.fromkeys(names(names_of_rule) if isinstance(names_of_rule, str) else names_of_rule, rule)
