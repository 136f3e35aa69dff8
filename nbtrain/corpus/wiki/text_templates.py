"""The few templates (of the English Wikipedia) whose arguments are words; all others are dropped."""

# ruff: noqa: SIM905, RUF001, RUF005 (word lists read best as words; letters that look alike are meant)

import re
from collections.abc import Callable

from nbtrain.corpus.wiki.markup import DROPPED, SUBSCRIPTS, SUPERSCRIPTS

RANGE_WORDS = frozenset({"to", "-", "–", "and", "or", "x", "by", "×", "+/-", "±"})


def _argument(number: int) -> Callable[[list[str]], str]:
    return lambda arguments: arguments[number - 1] if len(arguments) >= number else ""


def _last(arguments: list[str]) -> str:
    return arguments[-1] if arguments else ""


def _convert(arguments: list[str]) -> str:
    if len(arguments) >= 4 and arguments[1] in RANGE_WORDS:
        return " ".join(arguments[:4])
    return " ".join(arguments[:2])


def _fraction(arguments: list[str]) -> str:
    if len(arguments) == 3:
        return f"{arguments[0]} {arguments[1]}/{arguments[2]}"
    return "/".join(arguments if len(arguments) == 2 else ["1", *arguments])


def _formula(arguments: list[str]) -> str:
    """chem|SO|4|2-: SO, 4 below, 2- above; the last is the charge if it bears a sign."""
    above = arguments.pop().translate(SUPERSCRIPTS) if arguments and arguments[-1][-1] in "+-−" else ""
    return "".join(part.translate(SUBSCRIPTS) if part.isdigit() else part for part in arguments) + above


def _ship(kind: str) -> Callable[[list[str]], str]:
    return lambda arguments: f"{kind} {arguments[0]}" if arguments else ""


TEMPLATES: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(
        """
nowrap nobr nobold small smaller larger big abbr tooltip mvar math var val unicode iast strong em flag
flagcountry ill quote blockquote cquote quotation bquote script smallcaps sc formatnum num gaps mono code
underline vanchor linktext ipa angbr angle grapheme
""".split()
        + ["interlanguage link", "visible anchor", "angle bracket"],
        _argument(1),
    ),
    **dict.fromkeys(("lang", "transl", "transliteration", "script/hebrew", "color", "font color"), _last),
    **dict.fromkeys(("convert", "cvt", "convert/flip"), _convert),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **{name.lower(): _ship(name) for name in ("USS", "HMS", "HMAS", "HMCS", "RMS", "MS", "MV", "SMS")},
    "chem": _formula,
    "nihongo": lambda arguments: " ".join([*arguments[:1], *(f"({word})" for word in arguments[1:2])]),
    **dict.fromkeys(("c.", "circa"), lambda arguments: " ".join(["c.", *arguments[:1]])),
    "as of": lambda arguments: f"As of {arguments[0]}" if arguments else "",
    "us$": lambda arguments: f"US${arguments[0]}" if arguments else "US$",
    "inr": lambda arguments: f"₹{arguments[0]}" if arguments else "₹",
    # As numbers, which are resolved at the end: a bare ' would join quotes, a bare = would name a parameter.
    "'": lambda arguments: "&#39;",
    "'s": lambda arguments: "&#39;s",
    "=": lambda arguments: "&#61;",
    **dict.fromkeys(("ndash", "spnd", "snd", "spaced ndash", "–"), lambda arguments: " – "),
    **dict.fromkeys(("mdash", "—", "spaced mdash"), lambda arguments: "—"),
    **dict.fromkeys(("nbsp", "space", "thinsp", "·", "•"), lambda arguments: " "),
    "!": lambda arguments: "|",
    "pi": lambda arguments: "π",
}
# {{lang-de|Wort}}: "German: Wort" on the page; the word stays.
LANGUAGE = re.compile(r"lang-[a-z]{2,3}(?:-[a-z]+)?")
# A | inside a link separates no arguments.
SEPARATOR = re.compile(r"\|(?![^\[\]]*\]\])")
NAMED = re.compile(r"\s*[\w -]{1,30}=")
MAX_LENGTH = 20_000


def expand(inside: str) -> str:
    """What {{inside}} leaves in the sentence: words, or DROPPED."""
    name, _, rest = inside.partition("|")
    name = " ".join(name.replace("_", " ").split()).lower()
    words = TEMPLATES.get(name)
    if words is None:
        if not LANGUAGE.fullmatch(name):
            return DROPPED
        words = _argument(1)
    if len(inside) > MAX_LENGTH:
        return DROPPED
    arguments: list[str] = []
    for argument in SEPARATOR.split(rest) if rest else []:
        positional, equals, value = argument.partition("=")
        if not equals or not NAMED.match(argument):
            arguments.append(argument.strip())
        elif positional.strip().isdigit() or positional.strip() in ("text", "quote"):
            arguments.append(value.strip())
    return words([argument for argument in arguments if argument]) or DROPPED
