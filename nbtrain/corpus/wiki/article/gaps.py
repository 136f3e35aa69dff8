"""Drops the sentences around gaps: places where the article shows text that cannot be determined here."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re
from collections.abc import Callable

from nbtrain.corpus.wiki.markup import ASIDE, DROPPED, GAP

# Matches text that certainly ends a sentence. A gap directly after such an end is a footnote marker, unless
# the sentence continues after the gap.
BEFORE_NOTE = re.compile(r"(?:[^\W\d_]{4}|[)\]])[.!?][\"'”»’)]*$")
AFTER_NOTE = re.compile(rf"[{DROPPED}{GAP}]{{0,9}}(?:$|[ \t]\W{{0,9}}([^\W\d_]))")
IDEOGRAPHIC_END = re.compile(r"[。！？][」』）]*$")
AFTER_IDEOGRAPHIC_NOTE = re.compile(rf"[ \t{DROPPED}{GAP}]{{0,9}}$")
GAP_MARK = re.compile(GAP)
NOTE_CHARS = 30
ENDS_SENTENCE = re.compile(r"[.!?…。！？:;：；][\"'”»’)）」』\]\s]*$")
WORD = re.compile(r"\w")
OPENING, CLOSING = "([{（［「『【«„“", ")]}）］」』】»”"
IDEOGRAPHIC = ("ja", "zh", "yue", "wuu", "lzh", "gan")

# Replaces gaps while a line is split into sentences. It must be one character long, like a gap, and must not
# look like the initial of a name.
STAND_IN = "一"

Segment = Callable[[str, str], list[str]]
"""Function (language, text) -> sentences of the text including spaces, such as sentencex.segment."""


def without_notes(line: str) -> str:
    """Remove the gaps directly after the end of a sentence, because they are footnote markers."""
    return GAP_MARK.sub(lambda match: DROPPED if _is_note(match) else GAP, line)


def _is_note(gap: re.Match[str]) -> bool:
    before = gap.string[max(0, gap.start() - NOTE_CHARS) : gap.start()].rstrip(f"{DROPPED}{GAP}")
    if BEFORE_NOTE.search(before):
        match = AFTER_NOTE.match(gap.string, gap.end())
        # In scripts without upper and lower case, any letter may begin a sentence.
        return match is not None and (
            match[1] is None or match[1].lower() != match[1] or match[1].upper() == match[1]
        )
    return bool(IDEOGRAPHIC_END.search(before) and AFTER_IDEOGRAPHIC_NOTE.match(gap.string, gap.end()))


def drop_sentences(lines: list[str], language: str, segment: Segment) -> list[str]:
    """Remove the sentences that contain a gap from `lines`, and return these sentences.

    Lines may become empty, and a heading with a gap always does. A sentence may begin on an earlier line, so
    the lines of a paragraph are examined together.
    """
    dropped: list[str] = []
    for index, line in enumerate(lines):
        if GAP not in line:
            continue
        if line.startswith(f"{ASIDE}H"):
            lines[index] = ""
            continue
        begin = index
        while not line.startswith("- ") and begin and _continues(lines[begin - 1]):
            begin -= 1
            line = lines[begin]
        end = index + 1
        while (
            end < len(lines)
            and _continues(lines[end - 1])
            and _is_text(lines[end])
            and lines[end][:2] != "- "
        ):
            end += 1
        paragraph = "\n".join(lines[begin:end])
        mark = "- " if paragraph.startswith("- ") else ""
        kept: list[str] = []
        for sentence in _sentences(paragraph[len(mark) :], language, segment):
            (dropped if GAP in sentence else kept).append(sentence)
        text = "".join(kept).strip()
        if not WORD.search(text):
            text = ""
        lines[begin:end] = [f"{mark}{text}" if text else "", *[""] * (end - begin - 1)]
        if not text:
            continue
        if "\n" in text:
            lines[begin : begin + 1 + text.count("\n")] = f"{mark}{text}".split("\n")
    return dropped


def _is_text(line: str) -> bool:
    return bool(line) and not line.startswith(f"{ASIDE}H")


def _continues(line: str) -> bool:
    """Return whether the last sentence of a line continues in the next line."""
    return _is_text(line) and not ENDS_SENTENCE.search(line.rstrip(f"{GAP}{DROPPED} "))


def _sentences(text: str, language: str, segment: Segment) -> list[str]:
    """Return the sentences of a text, with each gap's sentence joined with all text that may belong to it."""
    is_ideographic = language.partition("-")[0] in IDEOGRAPHIC
    pieces = segment(language, text.replace("\n", " ").replace(GAP, STAND_IN))
    sentences: list[str] = []
    position = 0
    for piece in pieces:
        sentence = text[position : position + len(piece)]
        position += len(piece)
        # "approx. 5 km", "e.g. GAP": text that does not begin like a sentence may belong to the previous one.
        begin = sentence.lstrip(" \n\"'“„«([")[:1]
        is_sure = begin.isupper() or is_ideographic
        if sentences and not is_sure and (GAP in sentence or GAP in sentences[-1]):
            sentences[-1] += sentence
        else:
            sentences.append(sentence)
    if position < len(text):
        sentences.append(text[position:])
    index = 0
    while index < len(sentences):
        if GAP in sentences[index]:
            opened, closed = (sum(map(sentences[index].count, marks)) for marks in (OPENING, CLOSING))
            if closed > opened and index:
                sentences[index - 1 : index + 1] = [sentences[index - 1] + sentences[index]]
                index -= 1
                continue
            if opened > closed and index + 1 < len(sentences):
                sentences[index : index + 2] = [sentences[index] + sentences[index + 1]]
                continue
        index += 1
    return sentences
