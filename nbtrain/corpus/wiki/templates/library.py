"""Looks up the rules for the templates of one wiki: rules of its language, and rules shared by all wikis."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from typing import NamedTuple

from nbtrain.corpus.wiki.markup import DROPPED, GAP
from nbtrain.corpus.wiki.templates import common, functions
from nbtrain.corpus.wiki.templates.call import Call, Rule, Wiki

# Languages that have a module with rules: the ten largest Wikipedias by articles, Japanese and Chinese.
LANGUAGES = ("en", "ceb", "de", "fr", "sv", "nl", "es", "ru", "it", "pl", "ja", "zh")
MAX_NAMES = 20_000
"""Maximum number of template names with cached results; most dumps have only a few thousand names."""


class Tables(NamedTuple):
    """The templates that are known for a language, and their rules."""

    rules: dict[str, Rule]
    unseen: frozenset[str]
    """Names of templates that show nothing in the text of an article."""
    unseen_beginnings: tuple[str, ...]
    unseen_endings: tuple[str, ...]
    unlisted: Callable[[str, Call], str | None] | None
    """Function (name as written, call) -> text for templates that are in no table, or None."""


@cache
def tables(language: str) -> Tables:
    """Return the tables of a language, in which its own rules take precedence over shared ones."""
    if language not in LANGUAGES:
        begins, ends = common.UNSEEN_BEGINNINGS, common.UNSEEN_ENDINGS
        return Tables(common.RULES, common.UNSEEN - common.RULES.keys(), begins, ends, None)
    module = import_module(f"nbtrain.corpus.wiki.templates.{language}")
    shared = {name: rule for name, rule in common.RULES.items() if name not in module.UNSEEN}
    rules = shared | module.RULES
    return Tables(
        rules,
        (common.UNSEEN | module.UNSEEN) - rules.keys(),
        common.UNSEEN_BEGINNINGS + module.UNSEEN_BEGINNINGS,
        common.UNSEEN_ENDINGS + module.UNSEEN_ENDINGS,
        getattr(module, "unlisted", None),
    )


class Library:
    """Expands the templates of a wiki; implements markup.Templates."""

    def __init__(self, wiki: Wiki):
        self.wiki = wiki
        self.unknown: Counter[str] = Counter()
        """Number of occurrences of templates that cannot be evaluated, by name."""
        self._tables = tables(wiki.language)
        self.is_unseen = lru_cache(MAX_NAMES)(self._is_unseen)

    def begin(self, title: str) -> None:
        """Begin a new page, whose title is `title`."""
        self.wiki = replace(self.wiki, title=title)

    def _is_unseen(self, head: str) -> bool:
        """Implement markup.Templates.is_unseen(), which is a cached version of this method."""
        name = _name(head)
        if name in self._tables.unseen:
            return True
        if name in self._tables.rules:
            return False
        if name.startswith(self._tables.unseen_beginnings) or name.endswith(self._tables.unseen_endings):
            return True
        function, colon, _ = name.partition(":")
        return bool(colon) and functions.ALIASES.get(function, function) in functions.UNSEEN_FUNCTIONS

    def expand(self, inside: str, before: str, after: str) -> str:
        """Implement markup.Templates.expand(), and count templates that cannot be evaluated."""
        shown = self._shown(inside, before, after)
        if shown is None:
            self.unknown[_name(inside.partition("|")[0])[:60]] += 1
            return GAP
        return shown or DROPPED

    def _shown(self, inside: str, before: str, after: str) -> str | None:
        if inside.startswith(
            "{"
        ):  # {{{parameter|default}}} shows the default, because an article has no parameters
            return inside.strip("{}").partition("|")[2]
        head, bar, rest = inside.partition("|")
        name = _name(head)
        arguments = rest if bar else None
        if (rule := self._tables.rules.get(name)) is not None:
            return rule(Call(name, arguments, before, after, self.wiki))
        if self.is_unseen(head):
            return ""
        function, colon, first = head.partition(":")
        if colon:
            function = _name(function)
            if functions.ALIASES.get(function, function) in functions.FUNCTIONS:
                return functions.evaluated(function, f"{first}{bar}{rest}".replace(DROPPED, ""), self.wiki)
        if not bar and (word := functions.magic_word(head.strip(), self.wiki)):
            return word
        if self._tables.unlisted is None:
            return None
        return self._tables.unlisted(head, Call(name, arguments, before, after, self.wiki))


@lru_cache(MAX_NAMES)
def _name(head: str) -> str:
    """Return the name of a template in lower case and with single spaces."""
    return " ".join(head.replace("_", " ").replace(DROPPED, "").split()).lower()
