"""Converts the wikitext of an article to plain text, with the scans of markup.py and its own rules for lines.

Kept: paragraphs with an empty line between them; headings as lines after an empty line; list items as lines
(with "- " for * and #); labels of links; LaTeX of formulas between dollar signs; code; and the text that
templates show (templates/). Dropped: tables, references, galleries, files, categories, links to other
languages, comments, magic words, bold and italic marks, templates that show nothing in the text, and what
their removal leaves behind: "( , )", double spaces, list items and sections without a word. A sentence with a
template that cannot be evaluated is dropped as a whole (gaps.py).
"""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re
from collections import Counter
from collections.abc import Mapping

from nbtrain.corpus.wiki import markup
from nbtrain.corpus.wiki.article.gaps import Segment, drop_sentences, without_notes
from nbtrain.corpus.wiki.article.prefixes import FILE_ENDINGS, SISTERS, invisible_prefixes, normalized
from nbtrain.corpus.wiki.markup import ASIDE, BAR, DROPPED, GAP, JOINT, LESS_THAN, LINE_BREAK
from nbtrain.corpus.wiki.templates.call import Wiki
from nbtrain.corpus.wiki.templates.library import Library

# Soft hyphen, zero-width space, byte order mark and direction marks, which plain text does not need.
INVISIBLE = "\u00ad\u200b\u200e\u200f\u2060\ufeff"
SPACES = "\t\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
MAGIC_WORD = re.compile(r"__([^\W\d_]{3,30})__")
LIST_MARK = re.compile(r"\n[ \t\x1a]*+([*#:;]+)[ \t]*+")
VARIANT = re.compile(r"-\{([^{}\n]*)\}-")
HIDDEN = ("H", "T", "-")  # a rule for the words of the page, a rule for its title, the end of a rule
TABLE_REST = re.compile(r"\|(?:[-}+|]|\s|[^|\n]*=)")
ASIDE_MARK = re.compile(rf"{ASIDE}([0-9]+){ASIDE}")
WORD = re.compile(r"\w")
RULE = re.compile(r"-{4,}")

# Removed content leaves spaces and brackets behind. All repetitions are bounded, because an unbounded one is
# retried from each position, so that a page full of commas would take hours.
OPEN, CLOSE = r"[(（\[]", r"[)）\]]"
RUN = re.compile("\x1a(?:( ?)\x1a)++")
# Brackets with only separators and removed content inside, unlike "f()".
EMPTY_BRACKETS = re.compile(rf"{OPEN}[ ,;:.،、/–—-]{{0,9}}\x1a[ ,;:.،、/–—\x1a-]{{0,20}}{CLOSE}")
AFTER_BRACKET = re.compile(rf"({OPEN}) ?\x1a[ ,;:،、\x1a]{{0,20}}")
BEFORE_BRACKET = re.compile(rf"[ ,;:،、\x1a]{{0,9}}\x1a ?({CLOSE})")
BEFORE_COMMA = re.compile(" ?\x1a ?([,;،、]) ?\x1a? ?(?=[,;:.،、])| \x1a ?(?=[,;:.،、])")
# Maximum length of a line that has a gap but no sentence: "- " and the gap.
SHORT_LINE = 4
# Characters after which removed content leaves nothing behind that must be cleaned up.
PLAIN_BEFORE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.\"'!?%]")
PLAIN_BEFORE |= {"", "\n"}
NOT_AFTER = frozenset(" )）],;:.،、")
SENTENCE_ENDS = (". ", "。")


class Walker:
    """Converts the wikitext of one dump to text.

    `namespaces` holds the namespaces in the dump's <siteinfo>, as {key: name}, and may be empty. `wiki` holds
    the dump's language and name. `segment` splits text into sentences; without it, a whole paragraph is
    dropped if it contains a template that cannot be evaluated.
    """

    def __init__(
        self,
        namespaces: Mapping[int, str] | None = None,
        wiki: Wiki | None = None,
        segment: Segment | None = None,
    ):
        self._invisible = invisible_prefixes(namespaces or {})
        self._library = Library(wiki or Wiki())
        self._segment = segment or (lambda language, text: [text])
        self.sentences = 0
        """Approximate number of sentences converted so far: lines, plus full stops before a space."""
        self.dropped_sentences = 0
        """Number of sentences that were dropped because a template in them cannot be evaluated."""

    @property
    def unknown_templates(self) -> Counter[str]:
        """Number of occurrences of templates that cannot be evaluated, by name."""
        return self._library.unknown

    def text(self, wikitext: str, title: str = "") -> str:
        """Return the article's text without its title; "" if no text remains."""
        self._library.begin(title)
        aside: list[str] = []
        text = markup.without_marks(wikitext)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        text = markup.scan_tags(text, aside)
        text = markup.scan_templates(text, self._library)
        text = markup.scan_tables(text)
        if "-{" in text:
            text = VARIANT.sub(_first_variant, text)
        if "__" in text:
            text = MAGIC_WORD.sub(_magic_word, text)
        text = LIST_MARK.sub(_list_mark, f"\n{text}")
        text = markup.scan_links(text, self._link)
        return self._finish(text, aside)

    def _link(self, inside: str) -> str:
        """Return the text that replaces [[inside]] in the sentence."""
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

    def _finish(self, text: str, aside: list[str]) -> str:
        """Clean up lines and spaces, drop empty sections, and restore the text that was put aside."""
        text = text.replace("&nbsp;", " ")
        text = _with_plain_spaces(text)
        if BAR in text:
            text = text.replace(BAR, "|")
        if DROPPED in text:
            text = _without_plain_dropped(text)
        lines: list[str] = []
        has_gaps = False
        for raw in text.split("\n"):
            line = raw
            if "''" in line:
                line = markup.without_quotes(line)
            if JOINT in line:
                line = line.replace(JOINT, "")
            if "[" in line:
                line = markup.without_addresses(line).replace("[[", "")
            if "]" in line:
                line = line.replace("]]", "")
            if "{" in line:
                line = line.replace("{{", "").replace("{|", "")
            if "}" in line:
                line = line.replace("}}", "")
            first = line[:1]
            if first == "=" and (found := markup.heading(line)) is not None:
                level, title = found
                lines += ("", f"{ASIDE}H{level}{ASIDE}{_cleaned(title)}", "")
                has_gaps = has_gaps or GAP in title
                continue
            if first == "-":
                line = RULE.sub("", line, count=1) if RULE.match(line) else line
            elif not first:
                lines.append("")
                continue
            for piece in line.split(LINE_BREAK) if LINE_BREAK in line else (line,):
                cleaned = _cleaned(piece)
                if cleaned:
                    first = cleaned[0]
                    if not first.isalpha() and (
                        not WORD.search(cleaned) or (first == "|" and TABLE_REST.match(cleaned))
                    ):
                        continue  # a leftover
                    has_gaps = has_gaps or GAP in cleaned
                lines.append(cleaned)
        if has_gaps:
            for dropped in drop_sentences(lines, self._library.wiki.language, self._segment):
                number = 1 + sum(map(dropped.strip().count, SENTENCE_ENDS))
                self.sentences += number
                self.dropped_sentences += number
        lines = _without_empty_sections(lines)
        self.sentences += sum(map(bool, lines))
        text = "\n".join(lines)
        if LESS_THAN in text:
            text = text.replace(LESS_THAN, "<")
        if aside:
            text = ASIDE_MARK.sub(lambda match: aside[int(match[1])], text)
            if "\n\n\n" in text:
                text = re.sub("\n{3,}", "\n\n", text)
        self.sentences += sum(map(text.count, SENTENCE_ENDS))
        return text.strip()


def _first_variant(match: re.Match[str]) -> str:
    """Return the first variant of -{zh-hans:A; zh-hant:B}-; "" for a hidden rule such as -{H|...}-."""
    flags, bar, _ = match[1].partition("|")
    if bar and any(flag.strip() in HIDDEN for flag in flags.split(";")):
        return ""
    first = match[1].split(";")[0].rpartition("|")[2]
    return first.rpartition("=>")[2].rpartition(":")[2].strip()


def _magic_word(match: re.Match[str]) -> str:
    return "" if match[1] == match[1].upper() else match[0]


def _list_mark(match: re.Match[str]) -> str:
    return "\n- " if match[1][-1] in "*#" else "\n"


def _with_plain_spaces(text: str) -> str:
    """Remove invisible characters, and replace each sequence of spaces of any kind with one space."""
    for mark in INVISIBLE:
        if mark in text:
            text = text.replace(mark, "")
    for space in SPACES:
        if space in text:
            text = text.replace(space, " ")
    text = text.replace("  ", " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text


def _cleaned(line: str) -> str:
    """Return a line without the marks of removed content and what that content left behind."""
    if "&" in line:
        line = _with_plain_spaces(markup.entities(line))
    if GAP in line and len(line) > SHORT_LINE:
        line = without_notes(line)
    if DROPPED in line:
        line = _without_dropped(line)
    return line.strip()


def _without_plain_dropped(text: str) -> str:
    """Remove the marks of removed content at which nothing else must be cleaned up.

    These are most marks: notes after a word or full stop that are followed by a space, and marks that fill a
    whole line.
    """
    first, *others = text.split(DROPPED)
    kept = [first]
    before = first[-1:]
    for part in others:
        after = part[:1]
        if after in NOT_AFTER and (after != " " or part[1:2] in NOT_AFTER):
            is_plain = after == "." and before in PLAIN_BEFORE
        else:
            is_plain = before in PLAIN_BEFORE or (before == " " and kept[-1][-2:-1] in PLAIN_BEFORE)
        if not is_plain:
            kept.append(DROPPED)
        elif before == after == " ":
            part = part[1:]
        kept.append(part)
        before = part[-1:] or before
    return "".join(kept)


def _without_dropped(line: str) -> str:
    """Return a line without the marks, brackets and separators that removed content left behind."""
    line = RUN.sub(_run, line)
    line = EMPTY_BRACKETS.sub(DROPPED, line)
    line = AFTER_BRACKET.sub(r"\1", line)
    line = BEFORE_BRACKET.sub(r"\1", line)
    line = BEFORE_COMMA.sub("", line)
    line = line.replace(DROPPED, "")
    while "  " in line:
        line = line.replace("  ", " ")
    return line


def _run(match: re.Match[str]) -> str:
    return f"{DROPPED} " if match[1] else DROPPED


def _without_empty_sections(lines: list[str]) -> list[str]:
    """Drop headings without text below them, and separate paragraphs with one empty line."""
    kept: list[str] = []  # in reverse order
    text_below = 7  # level of the highest section below this line that has text; 7 if there is none
    blank = True
    for line in reversed(lines):
        if not line:
            if not blank:
                kept.append(line)
                blank = True
        elif line[0] != ASIDE or line[1:2] != "H":
            kept.append(line)
            text_below, blank = 0, False
        else:
            level, title = int(line[2]), line[4:]
            # `text_below` is 0 if text follows the heading directly, k if a kept heading of level k does.
            if title and (text_below == 0 or level < text_below < 7):
                while kept and not kept[-1]:
                    kept.pop()
                kept += (title, "")
                blank, text_below = True, level
    return kept[::-1]
