"""Wikitext -> text: the scans of markup.py in their order, what a link shows, and the lines that are left.

Kept: paragraphs with an empty line between them; headings as lines after an empty line; list items as lines
("- " before those of * and #); labels of links; LaTeX of formulas between dollars; code. Dropped: templates
(except those of text_templates.py), tables, references, galleries, files, categories, links to other
languages, comments, magic words, quotes of bold and italic, and what these leave behind: "( , )", double
blanks, list items and sections without a word.
"""

# ruff: noqa: RUF001 (word lists read best as words; letters that look alike are meant)

import re
from collections.abc import Mapping

from nbtrain.corpus.wiki import markup
from nbtrain.corpus.wiki.markup import ASIDE, CONTROLS, DROPPED, LESS_THAN, LINE_BREAK
from nbtrain.corpus.wiki.prefixes import FILE_ENDINGS, SISTERS, invisible_prefixes, normalized
from nbtrain.corpus.wiki.text_templates import expand

# Soft hyphen, zero-width space, byte order mark, direction marks: no article means them.
INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
BLANKS = re.compile("[ \t\u00a0\u2002-\u200a\u202f\u205f]+")
DOUBLE_BLANK = re.compile("  +")
MAGIC_WORD = re.compile(r"__([^\W\d_]{3,30})__")
LIST_MARK = re.compile(r"^[ \t\x1a]*([*#:;]+)[ \t]*", re.MULTILINE)
VARIANT = re.compile(r"-\{([^{}\n]*)\}-")
HIDDEN = ("H", "T", "-")  # a rule for the words of the page, for its title, the end of a rule
TABLE_REST = re.compile(r"[ \t]*\|(?:[-}+|]|\s|[^|\n]*=)")
HEADING_LINE = re.compile(rf"{ASIDE}H([1-6]){ASIDE}(.*)")
ASIDE_MARK = re.compile(rf"{ASIDE}([0-9]+){ASIDE}")
WORD = re.compile(r"\w")

# What was dropped leaves blanks and brackets around it. All runs are bounded: an unbounded one is tried again
# from each of its places, and a page of commas would take hours.
OPEN, CLOSE = r"[(（\[]", r"[)）\]]"
RUN = re.compile("\x1a(?:( ?)\x1a)++")
# Brackets in which nothing but separators and what was dropped is left; "f()" has nothing dropped in it.
EMPTY_BRACKETS = re.compile(rf"{OPEN}[ ,;:.،、/–—-]{{0,9}}\x1a[ ,;:.،、/–—\x1a-]{{0,20}}{CLOSE}")
AFTER_BRACKET = re.compile(rf"({OPEN}) ?\x1a[ ,;:،、\x1a]{{0,20}}")
BEFORE_BRACKET = re.compile(rf"[ ,;:،、\x1a]{{0,9}}\x1a ?({CLOSE})")
BEFORE_COMMA = re.compile(" ?\x1a ?([,;،、]) ?\x1a? ?(?=[,;:.،、])| \x1a ?(?=[,;:.،、])")


class Walker:
    """Wikitext of one dump to text. `namespaces`: {key: name} of its <siteinfo>, may be empty."""

    def __init__(self, namespaces: Mapping[int, str] | None = None):
        self._invisible = invisible_prefixes(namespaces or {})

    def text(self, wikitext: str) -> str:
        """The article's text without its title; empty if nothing is left."""
        aside: list[str] = []
        text = CONTROLS.sub("", wikitext.replace("\r\n", "\n"))
        text = markup.scan_tags(text, aside)
        text = markup.scan_templates(text, expand)
        text = markup.scan_tables(text)
        text = VARIANT.sub(_first_variant, text)
        text = MAGIC_WORD.sub(_magic_word, text)
        text = LIST_MARK.sub(_list_mark, text)
        text = markup.scan_links(text, self._link)
        text = markup.scan_quotes(text)
        text = markup.scan_addresses(text)
        text = markup.scan_headings(text)
        return _finish(markup.entities(text), aside)

    def _link(self, inside: str) -> str:
        """What [[inside]] leaves in the sentence."""
        title, bar, label = inside.partition("|")
        target = title.strip(f" \t\n{DROPPED}")
        if "\n" in target:
            return inside
        if markup.IS_ADDRESS.match(target):
            return f"[[{inside}]]"  # MediaWiki shows one pair of brackets around the label
        shown = target.startswith(":")
        target = target.lstrip(": ")
        prefix, colon, rest = target.partition(":")
        if colon and not shown:
            prefix = normalized(prefix)
            if prefix in self._invisible or rest.lower().endswith(FILE_ENDINGS):
                return DROPPED
        if bar:
            return label.replace("\n", " ")
        if colon and normalized(prefix) in SISTERS:
            target = rest
        return target.lstrip("#").replace("_", " ")


def _first_variant(match: re.Match[str]) -> str:
    """-{zh-hans:A; zh-hant:B}-: a reader sees one of the variants, and of a hidden rule -{H|...}- nothing."""
    flags, bar, _ = match[1].partition("|")
    if bar and any(flag.strip() in HIDDEN for flag in flags.split(";")):
        return ""
    first = match[1].split(";")[0].rpartition("|")[2]
    return first.rpartition("=>")[2].rpartition(":")[2].strip()


def _magic_word(match: re.Match[str]) -> str:
    return "" if match[1] == match[1].upper() else match[0]


def _list_mark(match: re.Match[str]) -> str:
    return "- " if match[1][-1] in "*#" else ""


def _finish(text: str, aside: list[str]) -> str:
    """Leftovers and blanks away, empty sections dropped, and back with what was put aside."""
    text = INVISIBLE.sub("", text)
    text = BLANKS.sub(" ", text)
    if DROPPED in text:
        text = RUN.sub(_run, text)
        text = EMPTY_BRACKETS.sub(DROPPED, text)
        text = AFTER_BRACKET.sub(r"\1", text)
        text = BEFORE_BRACKET.sub(r"\1", text)
        text = BEFORE_COMMA.sub("", text)
        text = text.replace(DROPPED, "")
    text = text.replace(LINE_BREAK, "\n")
    lines = [line for raw in text.split("\n") if (line := _line(raw)) is not None]
    text = "\n".join(_without_empty_sections(lines))
    text = text.replace(LESS_THAN, "<")
    for mark in ("[[", "]]", "{{", "}}", "{|"):
        if mark in text:
            text = text.replace(mark, "")
    if aside:
        text = ASIDE_MARK.sub(lambda match: aside[int(match[1])], text)
        text = re.sub("\n{3,}", "\n\n", text)
    return text.strip()


def _run(match: re.Match[str]) -> str:
    return f"{DROPPED} " if match[1] else DROPPED


def _line(raw: str) -> str | None:
    """A line with single blanks, empty for a paragraph's end; None if it is a leftover."""
    line = DOUBLE_BLANK.sub(" ", raw).strip()
    if not line or line.startswith(f"{ASIDE}H"):
        return line
    if not WORD.search(line) or TABLE_REST.match(line):
        return None
    return line


def _without_empty_sections(lines: list[str]) -> list[str]:
    """The lines without headings that have no text below, and with one empty line between paragraphs."""
    kept: list[str] = []  # backwards
    text_below = 7  # the highest section, as a level, that has text below this line; 7 is none
    blank = True
    for line in reversed(lines):
        match = HEADING_LINE.match(line)
        if match is None:
            if line:
                kept.append(line)
                text_below, blank = 0, False
            elif not blank:
                kept.append(line)
                blank = True
            continue
        level = int(match[1])
        # 0: text directly below; k: a kept heading of level k is the next thing below.
        if match[2] and (text_below == 0 or level < text_below < 7):
            while kept and not kept[-1]:
                kept.pop()
            kept += (match[2], "")
            blank, text_below = True, level
    return kept[::-1]
