r"""Processes the markup of wikitext with one scan for each kind of markup, in this order.

    tags         comments, <ref>, <gallery> ... are dropped; <math>, <pre>, <nowiki> ... are put aside
    templates    are replaced with the text that readers see
    tables       are dropped
    links        are replaced with their labels
    quotes       bold and italic marks are removed
    headings     become lines

No scan backtracks, so the time for a page is proportional to its size, even if markup is not closed. Scans
leave marks for later scans in the text: the constants below, which are characters that XML cannot contain.
Unlike \x1c to \x1f, Python does not treat any of them as a space.
"""

# ruff: noqa: SIM905, RUF001 (word lists read best as words; letters that look alike are meant)

import html
import re
from collections.abc import Callable
from typing import Protocol

DROPPED = "\x1a"
"""Mark of invisible content that was removed; spaces and brackets may remain around it."""
GAP = "\x18"
"""Mark of visible content that is unknown; the sentence around it is dropped."""
BAR = "\x19"
"""Replacement for a | that a template has produced and that does not separate arguments."""
LINE_BREAK = "\x16"  # <br>: a new line that ends neither a heading nor a list item
LESS_THAN = "\x15"  # a < that begins no tag
JOINT = "\x1b"
"""Mark that keeps the apostrophes before and after it from being counted together.

It replaces a tag, or the edge of a link or template, between apostrophes.
"""
ASIDE = "\x7f"  # surrounds the number of a text that was put aside, to be restored unchanged

MARKS = (DROPPED, GAP, BAR, LINE_BREAK, LESS_THAN, JOINT, ASIDE)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


def without_marks(text: str) -> str:
    """Remove the marker characters from a text."""
    # Searching for each character separately is faster than one search for any of them.
    return CONTROL.sub("", text) if any([mark in text for mark in MARKS]) else text


# As in MediaWiki, there is no space between < and a name: "a < b" is text. Possessive quantifiers prevent
# backtracking.
TAG = re.compile(r"<(?:!--|(/?)([A-Za-z][A-Za-z0-9-]*+)([^<>]*+)>)")

# Elements that are invisible in the text, and elements that cannot be represented as text.
UNSEEN = frozenset(
    """
ref references gallery timeline imagemap graph mapframe templatedata templatestyles indicator inputbox
categorytree includeonly style script table section languages
""".split()
)
UNWRITABLE = frozenset("score hiero maplink".split())
# Elements whose content is not wikitext.
VERBATIM = frozenset("nowiki pre math ce chem source syntaxhighlight".split())
NEW_LINE = frozenset("p div center blockquote poem ul ol dl dt dd tr h1 h2 h3 h4 h5 h6".split())
INLINE = frozenset(
    """
b i u s em strong small big sup sub span font tt code kbd samp var cite q abbr dfn del ins strike mark bdi bdo
ruby rb rt rp rtc time data a noinclude onlyinclude translate tvar td th caption thead tbody tfoot wbr img
nobr label
""".split()
)
BREAKS = frozenset("br hr".split())

# Closing tags as editors type them: with a space or line break inside the brackets, or without > at the end
# of the page.
CLOSING = {
    name: re.compile(rf"<\s*+/\s*+{name}\b[^<>]*+(?:>|(?=<)|\Z)", re.IGNORECASE)
    for name in UNSEEN | UNWRITABLE | VERBATIM
}
TABLE_TAG = re.compile(r"<(/?)table[^>]*+(?:>|\Z)", re.IGNORECASE)

# <ref> with a space after the bracket, and <ref without > before the text begins.
LOOSE_REFERENCE = re.compile(
    r"<\s++ref(?:\s++(?:name|group)\s*+=[^<>]*+)?\s*+(/?)>|<ref\b(?=[^<>]*+<\s*+/\s*+ref\s*+>)", re.IGNORECASE
)

SUPERSCRIPTS = str.maketrans("0123456789+-=()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾")
SUBSCRIPTS = str.maketrans("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎")
FIGURES = re.compile(r"[0-9+\-=()]{1,12}")
SIGNED_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)*")
# Symbols of the chemical elements. A subscript after a formula is a number of atoms; a subscript after "log",
# "7F" or "FF" is a base, so these must not be taken for formulas.
ELEMENT = """
A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[cdgnot]|N[abdeihop]?
O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abcehils]|U|V|W|Xe|Yb?|Z[nr]
""".replace("\n", "|").strip("|")
FORMULA = re.compile(rf"(?<![A-Za-z0-9.])(?:[(\[]*(?:{ELEMENT})[0-9]*|[)\]][0-9]*|[⁺⁻⁰-⁹¹²³])+$")
# A number of atoms and the state of matter, as in NH3(aq).
STATE = re.compile(r"[0-9]{1,2}\((?:aq|s|l|g)\)")
HEXADECIMAL = re.compile("[A-F]{2,}$")
VARIABLES = frozenset("nmkxyijtpqrNMK")
TAIL_CHARS = 16
SMALL = re.compile(r"<(su[bp])(?:\s[^<>]*+)?>([^<>\n]{0,60})</\1\s*+>", re.IGNORECASE)
BEGINS_WITH_FIGURE = re.compile(r"(?:<[^<>]{0,100}>|[\s'])*+[0-9+−-]")
SMALL_FRACTION = re.compile(
    r"<sup>\s*([0-9]{1,6})\s*</sup>\s?(?:[/⁄∕]|&frasl;|&#8260;)\s?<sub>\s*([0-9]{1,6})\s*</sub>",
    re.IGNORECASE,
)


def superscript(content: str, before: str) -> str:
    """Return superscript as plain text: ^6 after a digit (10^6), ² after a letter (m²), "st" unchanged."""
    content = content.replace("−", "-")
    after_digit = before[-1:].isdecimal()
    if after_digit and SIGNED_NUMBER.fullmatch(content):
        return f"^{content}"
    if FIGURES.fullmatch(content):
        return content.translate(SUPERSCRIPTS)
    words = content.strip("' ")
    if after_digit and "/" in words:
        return GAP  # 5<sup>1/2</sup> may mean five and a half or the root of five
    if (after_digit and words in VARIABLES) or any(letter.isdigit() for letter in words):
        return f"^{content}" if words.isalnum() else f"^({content})"
    return content


def subscript(content: str, before: str, after: str) -> str:
    """Return subscript as plain text: 2 in a formula (H2O), ₂ elsewhere (log₂), words unchanged."""
    content = content.replace("−", "-")
    if FIGURES.fullmatch(content):
        is_atoms = (
            content.isdigit()
            and FORMULA.search(before)
            and not (content == "16" and HEXADECIMAL.search(before))
        )
        if is_atoms and not after[:1].isdigit():
            return content
        return content.translate(SUBSCRIPTS)
    if (STATE.fullmatch(content) or SIGNED_NUMBER.fullmatch(content)) and FORMULA.search(before):
        return content
    if content.strip("'")[:1].isdigit():
        return f"_{content}" if content.isalnum() else f"_({content})"
    return content


def fraction(whole: str, numerator: str, denominator: str) -> str:
    """Return a fraction on one line; `whole` may be empty."""
    return f"{whole} {numerator}/{denominator}" if whole else f"{numerator}/{denominator}"


def tail(parts: list[str]) -> str:
    """Return the last TAIL_CHARS characters of the joined parts."""
    end = ""
    for part in reversed(parts[-TAIL_CHARS:]):
        end = part[-TAIL_CHARS:] + end
        if len(end) >= TAIL_CHARS:
            break
    return end


def scan_tags(text: str, aside: list[str]) -> str:
    """Return the text without tags. Any < that does not begin a tag becomes LESS_THAN.

    The content of tags is kept, dropped, or put into `aside`.
    """
    out: list[str] = []
    unclosed: set[str] = set()
    position = 0
    while (start := text.find("<", position)) >= 0:
        if start > position:
            out.append(text[position:start])
        match = TAG.match(text, start)
        if match is not None:
            position = match.end()
            closes, name, attributes = match.groups()
        elif (match := LOOSE_REFERENCE.match(text, start)) is not None:
            position = match.end()
            closes, name, attributes = "", "ref", match[1] or ""
        else:
            out.append(LESS_THAN)
            position = start + 1
            continue
        if name is None:
            end = text.find("-->", position)
            # As in MediaWiki, a comment without an end hides the rest of the page.
            position = len(text) if end < 0 else end + 3
            # A comment alone on its lines does not leave an empty line.
            if text.startswith("\n", start - 1) and text.startswith("\n", position):
                position += 1
            continue
        name = name.lower()
        if name in CLOSING:
            closing = None
            if not closes and not attributes.endswith("/") and name not in unclosed:
                closing = _closing(text, name, position)
                if closing is None:
                    unclosed.add(name)
                    continue
            if closing is None:
                out.append(_joint(text, start, position))
                continue
            content = text[position : closing.start()]
            position = closing.end()
            if name in VERBATIM:
                out.append(_put_aside(name, content, aside) or JOINT)
            else:
                out.append(GAP if name in UNWRITABLE else DROPPED)
        elif name in INLINE:
            if name in ("sup", "sub") and not closes:
                shown, position = _small(text, start, position, tail(out))
                out.append(shown)
            else:
                out.append(_joint(text, start, position))
        elif name in BREAKS:
            out.append(LINE_BREAK)
        elif name in NEW_LINE:
            out.append("\n" if closes or name not in ("dt", "dd") else "")
        elif name == "li":
            out.append("" if closes else "\n* ")
        else:
            out.append(match[0].replace("<", LESS_THAN))
    if not out:
        return text
    out.append(text[position:])
    return "".join(out)


def _small(text: str, start: int, position: int, before: str) -> tuple[str, int]:
    """Return (the text of the <sup> or <sub> at `start`, the position at which to continue).

    `position` is the end of the opening tag.
    """
    is_after_digit = before[-1:].isdigit()
    if match := SMALL_FRACTION.match(text, start):
        return f"{' ' * is_after_digit}{match[1]}/{match[2]}", match.end()
    match = SMALL.match(text, start)
    if match is None:  # tags inside
        mark = "^" if text[start + 3] in "pP" else "_"
        is_number = is_after_digit and BEGINS_WITH_FIGURE.match(text, position)
        return (mark if is_number else _joint(text, start, position)), position
    content, end = entities(match[2]).strip(), match.end()
    if re.fullmatch(r"\[[^\[\]]*\]", content):
        return DROPPED, end  # a footnote number that was typed by hand
    if "{" in content or "[" in content:
        return (GAP, end) if is_after_digit else (_joint(text, start, position), position)
    if match[1].lower() == "sup":
        return _with_joints(superscript(content, before)), end
    return _with_joints(subscript(content, before, text[end : end + 1])), end


def _joint(text: str, start: int, end: int) -> str:
    return JOINT if "'" in (text[start - 1 : start], text[end : end + 1]) else ""


def _with_joints(words: str) -> str:
    """Return the text of a link or template, with JOINT before an initial and after a final apostrophe."""
    if "'" not in words:
        return words
    begin, end = JOINT * words.startswith("'"), JOINT * words.endswith("'")
    return f"{begin}{words}{end}"


def _closing(text: str, name: str, position: int) -> re.Match[str] | None:
    """Return the closing tag of an element whose content begins at `position`, or None."""
    if name != "table":
        return CLOSING[name].search(text, position)
    depth = 1  # the only element that nests
    for match in TABLE_TAG.finditer(text, position):
        depth += -1 if match[1] else 1
        if depth == 0:
            return match
    return None


def _put_aside(name: str, content: str, aside: list[str]) -> str:
    if name in ("math", "ce", "chem"):
        content = _formula(content, is_chemical=name != "math")
        if not content:
            return DROPPED
    elif name == "nowiki":
        content = entities(content)
        if not content.strip():
            return content
    else:
        lines = [line.rstrip() for line in entities(content).strip("\n").split("\n")]
        content = "\n".join(lines)
        if not content.strip():
            return DROPPED
        if "\n" in content:
            content = f"\n{content}\n"
    aside.append(content)
    return f"{ASIDE}{len(aside) - 1}{ASIDE}"


def _formula(content: str, is_chemical: bool) -> str:
    """Return LaTeX between dollar signs on one line, with {{ and }} separated by spaces."""
    content = " ".join(entities(content).split())
    if content and is_chemical:
        content = rf"\ce{{{content}}}"
    content = content.replace("{{", "{ {").replace("{{", "{ {").replace("}}", "} }").replace("}}", "} }")
    return f"${content}$" if content else ""


ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def entities(text: str) -> str:
    """Resolve named and numeric character references; unknown names and a bare & stay unchanged."""
    if "&" not in text:
        return text
    text = text.replace("&nbsp;", "\u00a0")
    return ENTITY.sub(lambda match: CONTROL.sub("", html.unescape(match[0])), text)


class Templates(Protocol):
    """Expands {{...}} into text."""

    def is_unseen(self, head: str) -> bool:
        """Return whether a template that begins with `head` shows nothing, whatever its arguments are."""

    def expand(self, inside: str, before: str, after: str) -> str:
        """Return what readers see of the template {{inside}}: text, DROPPED or GAP.

        `before` and `after` are the texts around the template.
        """


HEAD = re.compile(r"[^|{}\[\]<>]{1,80}")
MAX_TEMPLATE_DEPTH = 20
MAX_TEMPLATE_CHARS = 20_000


def scan_templates(text: str, templates: Templates) -> str:
    """Replace every {{...}}, at any depth, with the text that readers see; unbalanced braces are dropped."""
    chunks = text.split("{{")
    frames: list[list[str]] = [
        [chunks[0].replace("}}", "")]
    ]  # the text of the page, then of each open template
    unseen = 0  # open braces in an invisible template, whose contents are skipped
    may_skip = True
    begin_unseen = number = 0
    while True:
        number += 1
        if number == len(chunks):
            if not unseen:
                break
            # The template is never closed: drop only its braces, and skip no other templates from here on.
            unseen, may_skip, number = 0, False, begin_unseen
            frames.append([])
        chunk = chunks[number]
        if unseen:
            unseen += 1
        elif number != begin_unseen or may_skip:
            head = HEAD.match(chunk)
            if may_skip and head is not None and templates.is_unseen(head[0]):
                unseen, begin_unseen = 1, number
            else:
                frames.append([])
        pieces = chunk.split("}}")
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            if unseen:
                if index < last:
                    unseen -= 1
                    if not unseen:
                        frames[-1].append(DROPPED)
                continue
            if index == last or len(frames) == 1:
                frames[-1].append(piece)
                continue
            frame = frames.pop()
            frame.append(piece)
            inside = "".join(frame)
            following = pieces[index + 1]
            # The third brace of {{{parameter}}}.
            if following.startswith("}") and inside.count("{") > inside.count("}"):
                following = pieces[index + 1] = following[1:]
            if len(frames) >= MAX_TEMPLATE_DEPTH or len(inside) > MAX_TEMPLATE_CHARS:
                frames[-1].append(DROPPED if _is_block(inside, frames) else GAP)
                continue
            after = following[:1] if following or index + 1 < last else "{"
            shown = templates.expand(inside, tail(frames[-1]), after)
            if shown == GAP and _is_block(inside, frames):
                shown = DROPPED
            frames[-1].append(_with_joints(shown))
    return "".join(["".join(parts) for parts in frames])


def _is_block(inside: str, frames: list[list[str]]) -> bool:
    """Return whether a template is a box: it begins a line and has parameters on the lines below."""
    if len(frames) > 1 or "\n" not in inside:
        return False
    for part in reversed(frames[0]):
        if rest := part.rstrip(f" \t{DROPPED}{GAP}"):
            return rest.endswith("\n")
    return True


TABLE_MARK = re.compile(r"\n[ \t:*#;\x1a]*+(\{\||\|\})")
HEADING = re.compile(r"\n={1,6}[^=\n][^\n]*=[ \t\x1a]*+(?=\n|\Z)")


def scan_tables(text: str) -> str:
    """Drop every {| ... |}; a table that is not closed extends to the next heading."""
    if "{|" not in text:
        return text
    text = f"\n{text}"
    open_at: list[int] = []
    cut: list[tuple[int, int]] = []  # begin and end of outermost tables
    for match in TABLE_MARK.finditer(text):
        if match[1] == "{|":
            open_at.append(match.start())
        elif open_at:
            begin = open_at.pop()
            while cut and cut[-1][0] > begin:
                cut.pop()
            cut.append((begin, match.end()))
    end = 0
    for begin in open_at:
        if begin >= end:
            heading = HEADING.search(text, begin + 1)
            end = heading.start() if heading else len(text)
        cut.append((begin, end))
    kept: list[str] = []
    position = 0
    for begin, end in sorted(cut):
        if begin >= position:
            kept += (text[position:begin], "\n")
        position = max(position, end)
    kept.append(text[position:])
    return "".join(kept)[1:]


# Most links, which have no brackets, namespaces, sections or quotes inside.
PLAIN_LINK = re.compile(r"\[\[([^\s\[\]|:#_/'\x15-\x1b][^\[\]|:#_\n'\x15-\x1b]*+)(?:\|([^\[\]\n']*+))?\]\]")
LINK = re.compile(r"\[\[([^\[\]]*+)\]\](?!\])")
SQUARE_BRACKETS = re.compile(r"\[\[|\]\]")
MAX_LINK_DEPTH = 4
PROTOCOL = r"(?:https?:|ftps?:|gopher:|irc:|ircs:|mailto:|news:|git:|svn:|tel:|urn:|geo:)?//|mailto:"
IS_ADDRESS = re.compile(PROTOCOL, re.IGNORECASE)
# [address], [address label]; a label may contain [brackets]. A link must end on its line.
ADDRESS = re.compile(rf"\[(?:{PROTOCOL})[^\s\[\]]*+(?:((?:[^\[\]\n]|\[[^\[\]\n]*+\])*+)(\]))?", re.IGNORECASE)


def scan_links(text: str, expand: Callable[[str], str]) -> str:
    """Replace every [[...]] with expand(inside), innermost first; drop unpaired or too deep brackets."""
    if "[[" not in text:
        return text.replace("]]", "") if "]]" in text else text
    parts = PLAIN_LINK.split(text)
    if len(parts) > 1:
        labels = parts[2::3]
        parts[1::3] = [
            target if label is None else label for target, label in zip(parts[1::3], labels, strict=True)
        ]
        parts[2::3] = [""] * len(labels)
        text = "".join(parts)
    text = LINK.sub(lambda match: _with_joints(expand(match[1])), text)
    if "[[" not in text and "]]" not in text:
        return text
    out: list[list[str]] = [[]]
    position = too_deep = 0
    while (match := SQUARE_BRACKETS.search(text, position)) is not None:
        out[-1].append(text[position : match.start()])
        position = match.end()
        if match[0] == "[[":
            if len(out) > MAX_LINK_DEPTH:
                too_deep += 1
            else:
                out.append([])
        elif too_deep:
            too_deep -= 1
        elif len(out) > 1:
            inside = "".join(out.pop())
            # [[File:a.jpg|b [http://c d]]]: as in MediaWiki, the first bracket closes the inner link.
            if text.startswith("]", position) and inside.count("[") > inside.count("]"):
                inside += "]"
                position += 1
            out[-1].append(_with_joints(expand(inside)))
    out[-1].append(text[position:])
    return "".join([part for parts in out for part in parts])


QUOTES = re.compile("('{2,})")


def without_quotes(line: str) -> str:
    """Remove bold and italic marks from a line, but not apostrophes in words, as MediaWiki's doQuotes."""
    # Words are at even positions, with runs of apostrophes between them. A run marks italic (2), bold (3) or
    # both (5); further apostrophes belong to the word before the run.
    if "''''" not in line:
        bolds = line.count("'''")
        italics = line.count("''") - bolds
        if not (bolds % 2 and italics % 2):
            return line.replace("'''", "").replace("''", "")
    parts = QUOTES.split(line)
    lengths: list[int] = []
    for index in range(1, len(parts), 2):
        run = len(parts[index])
        lengths.append(3 if run == 4 else min(run, 5))
        if run != lengths[-1]:
            parts[index - 1] += "'" * (run - lengths[-1])
        parts[index] = ""
    if 3 in lengths:
        italics, bolds = (sum(length in (kind, 5) for length in lengths) for kind in (2, 3))
        if italics % 2 and bolds % 2:
            # One ''' is really ' and '': preferably one after a word of one letter (l'''Iliade''), else after
            # a longer word, else after a space.
            before = [2 * number for number, length in enumerate(lengths) if length == 3]
            parts[min(before, key=lambda index: _rank(parts[index]))] += "'"
    return "".join(parts)


def _rank(words: str) -> int:
    if words.endswith(" "):
        return 2
    return 0 if words[-2:-1] == " " else 1


def without_addresses(line: str) -> str:
    """Replace [address label] with its label and drop [address]; an address without brackets is kept."""
    return ADDRESS.sub(_label, line)


def _label(match: re.Match[str]) -> str:
    if not match[2]:
        return ""
    return match[1].strip() or DROPPED


def heading(line: str) -> tuple[int, str] | None:
    """Return (level, title) if a line is a heading, otherwise None."""
    stripped = line.rstrip(f" \t{DROPPED}")
    inside = stripped.strip("=")
    left = len(stripped) - len(stripped.lstrip("="))
    level = min(left, len(stripped) - left - len(inside), 6)
    if not inside or not level:
        return None
    return level, stripped[level:-level].replace(LINE_BREAK, " ").strip(f" \t{DROPPED}")
