"""The marks of wikitext, found by one scan each, in this order.

    comments, <ref>, <gallery> ... dropped; <math>, <pre>, <nowiki> ... put aside  ->  templates  ->  tables
    dropped  -> links  ->  quotes of bold and italic  ->  headings

The scans never backtrack: they take the same time for any page of one size, whatever it leaves open.
Characters that no XML can hold, the constants below, carry notes to walker.py.
"""

# ruff: noqa: SIM905, RUF001 (word lists read best as words; letters that look alike are meant)

import html
import re
from collections.abc import Callable

DROPPED = "\x1a"
"""Something was dropped here: the blanks and brackets around it may be left without a meaning."""
LINE_BREAK = "\x1d"  # <br>: a new line that ends neither a heading nor a list item
LESS_THAN = "\x1c"  # a < that begins no tag
JOINT = "\x1b"
"""A tag, or the edge of a link or template, beside a ': apostrophes on both sides are not one run of them."""
ASIDE = "\x7f"  # around the number of a text that is put aside and comes back as it is

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")

# No blank between < and a name, as in MediaWiki: "a < b" is text. Possessive, so that nothing is tried twice.
TAG = re.compile(r"<!--|<(/?)([A-Za-z][A-Za-z0-9-]*+)([^<>]*+)>")

WITHOUT_CONTENT = frozenset(
    """
ref references gallery timeline imagemap graph mapframe maplink templatedata templatestyles indicator score
inputbox categorytree includeonly hiero style script table ce chem section languages
""".split()
)
# What is inside is not wikitext.
VERBATIM = frozenset("nowiki pre math source syntaxhighlight".split())
NEW_LINE = frozenset("p div center blockquote poem ul ol dl dt dd tr h1 h2 h3 h4 h5 h6".split())
INLINE = frozenset(
    """
b i u s em strong small big sup sub span font tt code kbd samp var cite q abbr dfn del ins strike mark bdi bdo
ruby rb rt rp rtc time data a noinclude onlyinclude translate tvar td th caption thead tbody tfoot wbr img
nobr label
""".split()
)
BREAKS = frozenset("br hr".split())

# References as people type them: a blank or a line break inside the brackets, or no > before the text begins.
LOOSE_REFERENCE = re.compile(
    r"<\s++(ref(?:\s++(?:name|group)\s*+=[^<>]*+)?\s*+/?>)|<\s*+/\s*+(ref)\s*+>|<(ref)\b(?=[^<>]*+<\s*+/\s*+ref\s*+>)",
    re.IGNORECASE,
)

SUPERSCRIPTS = str.maketrans("0123456789+-−=()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾")
SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
SMALL_FIGURES = re.compile(r"<(su[bp])>([0-9+\-−=()]{1,12})</\1>", re.IGNORECASE)


def scan_tags(text: str, aside: list[str]) -> str:
    """No tag is left: its content is kept, dropped or put aside. `<` that begins none is LESS_THAN."""
    text = SMALL_FIGURES.sub(
        lambda match: match[2].translate(SUPERSCRIPTS if match[1].lower() == "sup" else SUBSCRIPTS), text
    )
    text = LOOSE_REFERENCE.sub(_reference, text)
    lowered = text.lower()
    if len(lowered) != len(text):  # lower() makes a few letters longer
        lowered = text
    out: list[str] = []
    unclosed: set[str] = set()
    position = 0
    while (match := TAG.search(text, position)) is not None:
        out.append(text[position : match.start()].replace("<", LESS_THAN))
        position = match.end()
        if match[2] is None:
            end = text.find("-->", match.end())
            # As MediaWiki does: a comment without an end hides the rest.
            position = len(text) if end < 0 else end + 3
            # A comment alone on its lines leaves no empty one.
            if out[-1].endswith("\n") and text.startswith("\n", position):
                position += 1
            continue
        name = match[2].lower()
        closes, closed = bool(match[1]), match[3].endswith("/")
        if name in WITHOUT_CONTENT or name in VERBATIM:
            if closes or closed or name in unclosed:
                out.append(_joint(text, match))
                continue
            end, after = _closing(lowered, name, position)
            if end < 0:
                unclosed.add(name)
                continue
            if name in VERBATIM:
                out.append(_put_aside(name, text[position:end], aside) or JOINT)
            else:
                out.append(DROPPED)
            position = after
        elif name in BREAKS:
            out.append(LINE_BREAK)
        elif name in NEW_LINE:
            out.append("\n" if name not in ("dt", "dd") or closes else "")
        elif name == "li":
            out.append("" if closes else "\n* ")
        elif name in INLINE:
            out.append(_joint(text, match))
        else:
            out.append(match[0].replace("<", LESS_THAN))
    out.append(text[position:].replace("<", LESS_THAN))
    return "".join(out)


def _joint(text: str, tag: re.Match[str]) -> str:
    return JOINT if "'" in (text[tag.start() - 1 : tag.start()], text[tag.end() : tag.end() + 1]) else ""


def _with_joints(words: str) -> str:
    """What a link or a template shows, its apostrophes kept apart from those around it."""
    begin, end = JOINT * words.startswith("'"), JOINT * words.endswith("'")
    return f"{begin}{words}{end}"


def _reference(match: re.Match[str]) -> str:
    opening, closing, unended = match.groups()
    return f"<{opening}" if opening else f"</{closing}>" if closing else f"<{unended}>"


def _closing(lowered: str, name: str, position: int) -> tuple[int, int]:
    """(where the closing tag begins, where it ends), or (-1, -1)."""
    opening, closing = f"<{name}", f"</{name}"
    start, depth = position, 1
    while True:
        end = lowered.find(closing, position)
        if end < 0:
            return -1, -1
        if name == "table":  # the only one that nests
            depth += lowered.count(opening, start, end) - 1
        else:
            depth -= 1
        stop = lowered.find(">", end)
        stop = len(lowered) if stop < 0 else stop + 1
        if depth <= 0:
            return end, stop
        start = position = stop


def _put_aside(name: str, content: str, aside: list[str]) -> str:
    if name == "math":
        content = _formula(content)
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


def _formula(content: str) -> str:
    """LaTeX between dollars on one line; a blank keeps {{ and }} apart, which means the same."""
    content = " ".join(entities(content).split())
    content = content.replace("{{", "{ {").replace("{{", "{ {").replace("}}", "} }").replace("}}", "} }")
    return f"${content}$" if content else ""


ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def entities(text: str) -> str:
    """Named and numbered characters resolved; unknown names and a bare & are left."""
    if "&" not in text:
        return text
    return ENTITY.sub(lambda match: CONTROLS.sub("", html.unescape(match[0])), text)


BRACES = re.compile(r"\{\{|\}\}")
MAX_TEMPLATE_DEPTH = 20


def scan_templates(text: str, expand: Callable[[str], str]) -> str:
    """Every {{...}}, however deep, replaced by expand(what is inside); braces without a partner dropped."""
    out: list[list[str]] = [[]]
    position = 0
    for match in BRACES.finditer(text):
        # The third brace of {{{parameter}}} is skipped below.
        start = max(position, match.start())
        out[-1].append(text[position:start])
        position = match.end()
        if match[0] == "{{":
            out.append([])
        elif len(out) > 1:
            inside = "".join(out.pop())
            if text.startswith("}", position) and inside.count("{") > inside.count("}"):
                position += 1
            out[-1].append(_with_joints(expand(inside)) if len(out) <= MAX_TEMPLATE_DEPTH else DROPPED)
    out[-1].append(text[position:])
    return "".join(part for parts in out for part in parts)


TABLE_BEGINS = re.compile(r"[\s:*#;\x1a]*\{\|")
TABLE_ENDS = re.compile(r"[\s:]*\|\}")
HEADING = re.compile(r"={1,6}[^=\n].*=[ \t\x1a]*$")


def scan_tables(text: str) -> str:
    """Every {| ... |} dropped; one that never ends goes as far as the next heading."""
    if "{|" not in text:
        return text
    lines = text.split("\n")
    open_at: list[int] = []
    cut: list[tuple[int, int]] = []  # first and last line of outermost tables
    for number, line in enumerate(lines):
        if TABLE_BEGINS.match(line):
            open_at.append(number)
        elif open_at and (match := TABLE_ENDS.match(line)):
            start = open_at.pop()
            lines[number] = line[match.end() :]
            while cut and cut[-1][0] > start:
                cut.pop()
            cut.append((start, number))
    for start in open_at:
        stop = next((n for n in range(start + 1, len(lines)) if HEADING.match(lines[n])), len(lines))
        cut.append((start, stop))
        if stop == len(lines):
            break  # the tables after it lie inside
    kept: list[str] = []
    position = 0
    for start, stop in sorted(cut):
        if start >= position:
            kept.extend(lines[position:start])
        position = max(position, stop)
    kept.extend(lines[position:])
    return "\n".join(kept)


SQUARE_BRACKETS = re.compile(r"\[\[|\]\]")
MAX_LINK_DEPTH = 4
PROTOCOL = r"(?:https?:|ftps?:|gopher:|irc:|ircs:|mailto:|news:|git:|svn:|tel:|urn:|geo:)?//|mailto:"
IS_ADDRESS = re.compile(PROTOCOL, re.IGNORECASE)
# [address], [address label]; a label may hold [brackets]. One without an end on its line is no link.
ADDRESS = re.compile(rf"\[(?:{PROTOCOL})[^\s\[\]]*+(?:((?:[^\[\]\n]|\[[^\[\]\n]*+\])*+)(\]))?", re.IGNORECASE)


def scan_links(text: str, expand: Callable[[str], str]) -> str:
    """Every [[...]] replaced by expand(inside), inner first; unpaired and too deep brackets dropped."""
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
            # [[File:a.jpg|b [http://c d]]]: the first of three closes the inner one, as in MediaWiki.
            if text.startswith("]", position) and inside.count("[") > inside.count("]"):
                inside += "]"
                position += 1
            out[-1].append(_with_joints(expand(inside)))
    out[-1].append(text[position:])
    return "".join(part for parts in out for part in parts)


QUOTES = re.compile("('{2,})")


def scan_quotes(text: str) -> str:
    """Bold and italic without their marks, with the words' own apostrophes: MediaWiki's doQuotes."""
    if "''" in text:
        text = "\n".join(_without_quotes(line) if "''" in line else line for line in text.split("\n"))
    return text.replace(JOINT, "")


def _without_quotes(line: str) -> str:
    # Words at even places, runs of apostrophes between them. A run marks italic (2), bold (3) or both (5);
    # further apostrophes belong to the word before it.
    parts = QUOTES.split(line)
    lengths: list[int] = []
    for index in range(1, len(parts), 2):
        run = len(parts[index])
        lengths.append(3 if run == 4 else min(run, 5))
        parts[index - 1] += "'" * (run - lengths[-1])
        parts[index] = ""
    italics, bolds = (sum(length in (kind, 5) for length in lengths) for kind in (2, 3))
    if italics % 2 and bolds % 2 and 3 in lengths:
        # One ''' means ' and '': after a word of one letter (l'''Iliade''), else a longer one, else a blank.
        before = [2 * number for number, length in enumerate(lengths) if length == 3]
        parts[min(before, key=lambda index: _rank(parts[index]))] += "'"
    return "".join(parts)


def _rank(words: str) -> int:
    if words.endswith(" "):
        return 2
    return 0 if words[-2:-1] == " " else 1


def scan_addresses(text: str) -> str:
    """[address label] becomes its label, [address] is dropped; an address without brackets stays."""
    return ADDRESS.sub(_label, text) if "[" in text else text


def _label(match: re.Match[str]) -> str:
    if not match[2]:
        return ""
    return match[1].strip() or DROPPED


RULE = re.compile(r"^-{4,}", re.MULTILINE)


def scan_headings(text: str) -> str:
    """Lines == so == become lines that name their level between ASIDE marks; lines of dashes become empty."""
    text = RULE.sub("", text)
    if "\n=" not in text and not text.startswith("="):
        return text
    return "\n".join(_heading(line) if line.startswith("=") else line for line in text.split("\n"))


def _heading(line: str) -> str:
    stripped = line.rstrip(f" \t{DROPPED}")
    inside = stripped.strip("=")
    left = len(stripped) - len(stripped.lstrip("="))
    level = min(left, len(stripped) - left - len(inside), 6)
    if not inside or not level:
        return line
    title = stripped[level:-level].replace(LINE_BREAK, " ").strip(f" \t{DROPPED}")
    return f"\n{ASIDE}H{level}{ASIDE}{title}\n"
