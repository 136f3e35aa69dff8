"""Rules for templates that mean the same in most Wikipedias, and rules that the language modules share."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

from nbtrain.corpus.wiki.markup import (
    BAR,
    GAP,
    LINE_BREAK,
    fraction,
    subscript,
    superscript,
)
from nbtrain.corpus.wiki.templates.call import (
    Call,
    Rule,
    argument,
    around,
    constant,
    is_known,
    last,
    names,
    rules,
)
from nbtrain.corpus.wiki.templates.language_names import language_name
from nbtrain.corpus.wiki.templates.numbers import ENGLISH_FORMAT, plain
from nbtrain.corpus.wiki.templates.units import convert, gaps, val


def spaced(text: str) -> str:
    """Return a text with a space before it, or "" if it is empty."""
    return f" {text}" if text else ""


def named_text(call: Call) -> str | None:
    """Return the text of {{lang|de|Text}} or {{lang|de|text=Text}}: Text."""
    return call.get("text") or call[2] or None


def mark(call: Call) -> str | None:
    """Return the text of a mark of doubt such as {{citation needed}}: "", because it is not part of the text.

    The result is None if an argument contains letters, which the mark may show in the sentence.
    """
    return None if any(letter.isalpha() for word in call.words for letter in word) else ""


def joined(call: Call) -> str | None:
    """Return the text of {{linktext|中|文}}: 中文; None for several ASCII words (unknown spacing)."""
    return "".join(call.words) if len(call.words) == 1 or not "".join(call.words).isascii() else None


def sup(call: Call) -> str | None:
    """Return the text of {{sup|2}}: a superscript."""
    shown = superscript(call[1], call.before) if is_known(call[1]) else None
    return None if shown == GAP else shown


def sub(call: Call) -> str | None:
    """Return the text of {{sub|2}}: a subscript."""
    # If a template follows, its text may begin with a digit.
    return (
        subscript(call[1], call.before, "0" if call.after == "{" else call.after)
        if is_known(call[1])
        else None
    )


def power_of_ten(before: str = "×") -> Rule:
    """Return the rule for {{e|6}}, which shows ×10^6."""

    def rule(call: Call) -> str | None:
        number = plain(call[1])
        return f"{before}10^{number}" if number and call.has_only(most=1) else None

    return rule


def frac(call: Call) -> str | None:
    """Return the text of a fraction: {{frac|3}} shows 1/3, {{frac|1|2}} 1/2, and {{frac|5|1|2}} 5 1/2."""
    words = call.words
    if not call.has_only(most=3) or not words or not is_known(*words):
        return None
    if len(words) == 3:
        return fraction(words[0], words[1], words[2])
    shown = fraction("", *([_bracketed(word) for word in words] if len(words) == 2 else ["1", words[0]]))
    return f" {shown}" if call.before[-1:].isdigit() else shown


def _bracketed(term: str) -> str:
    return f"({term})" if re.search(r"[+−–\s-]", term.replace("'", "")) else term


CHARGE = re.compile(r"([0-9]*[+\-−])|[0-9]+")


def chem(call: Call) -> str | None:
    """Return the text of {{chem|SO|4|2-}}: SO4²⁻; the last argument is a charge if it ends in a sign."""
    words = list(call.words)
    if not words or not is_known(*words):
        return None
    charge = superscript(words.pop(), "") if len(words) > 1 and words[-1][-1:] in tuple("+-−") else ""
    return "".join(words) + charge


CHEM2 = re.compile(r"\(([0-9]*[+\-−])\)|(?<=[A-Za-z\])])([+\-−])(?=\s|$)|(<?->|<-|<=>|→)|\*|(''[^']*'')")


def chem2(call: Call) -> str | None:
    """Return the text of {{chem2|SO4(2-) + 2 H+}}: SO4²⁻ + 2 H⁺."""

    def part(match: re.Match[str]) -> str:
        charge = match[1] or match[2]
        if charge:
            return superscript(charge, "")
        if match[3]:
            return {"->": "→", "<-": "←", "<->": "↔", "<=>": "⇌"}.get(match[3], match[3])
        return match[0] if match[4] else "·"

    text = call[1]
    if not is_known(text) or not call.has_only("auto", "link", "via", most=1) or re.search(r"[{}_^@]", text):
        return None
    return CHEM2.sub(part, text)


def math_text(call: Call) -> str | None:
    """Return the text of {{math|x {{=}} 1}}: its argument, x = 1."""
    return call.get("1") or call[1]


def overlined(call: Call) -> str | None:
    """Return the text of {{overline|x}}: x; None for digits, over which a line means repetition."""
    return None if any(letter.isdigit() for letter in call[1] + call.before[-1:]) else call[1]


def language_label(text: str, format: str) -> Rule:
    """Return the rule for {{lang-de|Wort}}, which shows the name of a language and a word.

    `text` is the code of the language in which the name is written. `format` is a format string with the
    fields {name} and {word}.
    """

    def rule(call: Call) -> str | None:
        name = language_name(call.name.partition("-")[2], text)
        word = call.get("text") or call[1]
        if name is None or not word or not call.has_only("text", most=1):
            return None
        return format.format(name=name, word=word)

    return rule


def labels(text: str, format: str, beginning: str = "lang-") -> dict[str, Rule]:
    """Return the rules for {{lang-xx}} for all languages with a known name."""
    from nbtrain.corpus.wiki.templates.language_names import NAMES

    return rules([f"{beginning}{code}" for code in NAMES], language_label(text, format))


def quoted(opening: str, closing: str, *names: str) -> Rule:
    """Return a rule that shows the first argument in quotation marks."""
    return around(opening, closing, 1, *names)


def inline_quote(call: Call) -> str | None:
    """Return the text of a quotation template, as a separate paragraph."""
    text = call.get("text", "quote", "1") or call[1]
    return f"\n{text}\n" if text else ""


LATITUDE, LONGITUDE = ("N", "S"), ("E", "W")


def coord(call: Call) -> str | None:
    """Return the text of {{coord|13|19|N|169|9|W}}: 13°19′N 169°9′W, or nothing with display=title."""
    display = call.get("display").replace(" ", "").lower()
    if display in ("title", "t"):
        return ""
    if (
        call.wiki.language not in ("en", "ceb")
        or call.get("format")
        or display not in (*("", "inline", "i", "inline,title", "title,inline", "it", "ti"),)
    ):
        return None
    words = call.words
    for each in (4, 3, 2):
        if len(words) >= 2 * each and words[each - 1] in LATITUDE and words[2 * each - 1] in LONGITUDE:
            latitude, longitude = (_angle(words[begin : begin + each]) for begin in (0, each))
            return f"{latitude} {longitude}" if latitude and longitude else None
    latitude, longitude = (_signed_angle(word, signs) for word, signs in ((call[1], "NS"), (call[2], "EW")))
    return f"{latitude} {longitude}" if latitude and longitude else None


def _angle(parts: list[str]) -> str | None:
    *numbers, direction = parts
    if any(plain(number) is None for number in numbers):
        return None
    return "".join(f"{number}{mark}" for number, mark in zip(numbers, "°′″", strict=False)) + direction


def _signed_angle(text: str, directions: str) -> str | None:
    number = plain(text)
    if number is None:
        return None
    return f"{number.lstrip('+-')}°{directions[number.startswith('-')]}"


def ordinal_suffix(number: int) -> str:
    """Return the English ordinal suffix of a number: st, nd, rd or th."""
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def listed(separator: str, end: str = "") -> Rule:
    """Return a rule that shows all positional arguments with a separator between them."""

    def rule(call: Call) -> str | None:
        words = [word for word in call.words if word]
        return (
            f"{separator if separator.startswith(chr(10)) else ''}{separator.join(words)}{end}"
            if words
            else ""
        )

    return rule


def identifier(label: str) -> Rule:
    """Return the rule for templates such as {{ISBN|978...}}, which show `label` and a single number."""

    def rule(call: Call) -> str | None:
        return f"{label}{call[1]}" if call[1] and call.has_only("id", most=1) else None

    return rule


def english_number(call: Call) -> str | None:
    """Return the text of {{nts|12345}}: the number in the format of {{formatnum:}}."""
    number = plain(call[1])
    if number is None or not call.has_only("prefix", "suffix", most=1) or call.wiki.numbers is None:
        return None
    return f"{call.get('prefix')}{call.wiki.numbers.write(number)}{call.get('suffix')}"


def in_english_format(call: Call) -> str | None:
    """Return the text of a template that shows a number with commas between thousands."""
    number = plain(call[1])
    return None if number is None or not call.has_only(most=1) else ENGLISH_FORMAT.write(number)


# Written as entities, which are resolved at the end: a bare ' would become part of bold and italic marks, and
# a bare = would name an argument of the surrounding template.
APOSTROPHE, EQUALS = "&#39;", "&#61;"

# Templates that mark doubts after a word.
MARKS = """
citation needed|cn|fact|clarify|clarification needed|when|who|which|where|why|how|by whom
according to whom|vague|dubious|disputed inline|page needed|full citation needed|failed verification
verify source|better source|better source needed|unreliable source?|update inline|update after
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **rules(
        "nowrap|nobr|nowr|small|smaller|big|larger|midsize|resize small|unbulleted|noitalic|nobold",
        argument(1),
    ),
    **rules(
        "abbr|tooltip|abbrlink|abbreviation|vanchor|visible anchor|underline|strong|em|mono|code|kbd",
        argument(1),
    ),
    **rules("smallcaps|sc|small caps|unicode|grapheme|mvar|var|tt|samp|center|centre|iast", argument(1)),
    **rules("color|colour|font color|fontcolor|resize|fontsize|font size|background color|script", last),
    **rules("linktext", joined),
    **rules("lang", named_text),
    **rules("transl|transliteration", last),
    **rules("flatlist|plainlist", lambda call: f"\n{call[1]}\n" if call.words else ""),
    **rules("0", constant("")),
    **rules("sup|superscript", sup),
    **rules("sub|subscript", sub),
    **rules("math|bigmath", math_text),
    **rules("overline|overbar|vinculum", overlined),
    **rules("frac|fraction|sfrac", frac),
    **rules("chem|chemf", chem),
    **rules("chem2|chemical formula", chem2),
    **rules("convert|cvt|conv|convert/flip", convert),
    **rules("val", val),
    **rules("gaps", gaps),
    **rules("coord|coordinates", coord),
    **rules("nbsp|space|thinsp|thinspace|hair space|hairsp|nnbsp|en space|em space|sp|spaces", constant(" ")),
    **rules("ndash|en dash|–", constant("–")),
    **rules("spaced ndash|spnd|snd|snds|spaced en dash|space en dash", constant(" – ")),
    **rules("mdash|em dash|—", constant("—")),
    **rules("·|middot|dot|interpunct", constant(" · ")),
    **rules("•|bull|bullet", constant(" • ")),
    **rules("'|apostrophe", constant(APOSTROPHE)),
    **rules("=|equals", constant(EQUALS)),
    **rules("br|break|crlf|newline", constant(LINE_BREAK)),
    **rules("pipe|!", constant(BAR)),
    **rules("zwsp|wbr|shy|zwj|zwnj|zero width joiner em dash zero width non joiner", constant("")),
    **rules("pi", constant("π")),
    **rules("isbn", identifier("ISBN ")),
    **rules("issn", identifier("ISSN ")),
    **rules("oclc", identifier("OCLC ")),
    **rules("doi", identifier("doi:")),
    **rules("pmid", identifier("PMID ")),
    **rules("quote|blockquote|quotation|bquote|cquote", inline_quote),
    "!": constant(BAR),
    "|": constant(BAR),
}

# Templates that show nothing in the text: footnote and doubt markers, anchors, page settings, and boxes,
# lists of links and notices outside the text.
UNSEEN = names(
    """
sfn|sfnp|sfnm|sfnref|efn|efn-ua|efn-lr|efn-la|refn|rp|ref|note|notetag|notelist|reflist|references
refbegin|refend|clear|clr|clear left|clear right|-|anchor|anchors|toc|toc left|toc right|tocleft|tocright
toclimit|toc limit|horizontal toc|compact toc|compacttoc|infobox|taxobox|navbox|authority control
coord missing|defaultsort|lowercase title|italic title|displaytitle|short description|portal|portal bar
commons|commons category|commonscat|commons cat|commons and category|wikiquote|wikisource|wiktionary
wikinews|wikibooks|wikiversity|wikivoyage|wikispecies|sister project links|sisterlinks|sister links
interwiki extra|main|main article|see also|seealso|further|details|about|other uses|otheruses|for|redirect
redirect2|distinguish|hatnote|dablink|rellink|see|stub|unreferenced|refimprove|more citations needed
cleanup|multiple issues|orphan|use dmy dates|use mdy dates|good article|featured article|gallery
multiple image|double image|div col|div col end|col-begin|col-end|col-break|columns-list end|col div
end div col|colbegin|colend|multicol|multicol-break|multicol-end|flagicon|flag icon|flagdeco|increase
decrease|steady|gain|loss|profit|nowrap begin|nowrap end|endflatlist|end flatlist|endplainlist
end plainlist|collapse top|collapse bottom|ifsubst|stack begin|stack end|bots|nobots|sort key|ntsh|hs|hid
engvarb|use british english|use american english
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("infobox ", "infobox_", "navbox ", "taxobox ", "pp-", "pp ", "user ")
UNSEEN_ENDINGS: tuple[str, ...] = ("-stub", " infobox", "-geo-stub")
