"""Templates of the German Wikipedia, according to their documentation pages (Vorlage:<Name>)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

from nbtrain.corpus.wiki.markup import LINE_BREAK, fraction
from nbtrain.corpus.wiki.templates.call import Call, Rule, argument, constant, names, rules
from nbtrain.corpus.wiki.templates.common import inline_quote, quoted, spaced
from nbtrain.corpus.wiki.templates.language_names import NAMES
from nbtrain.corpus.wiki.templates.numbers import NumberFormat, plain

FORMAT = NumberFormat(".", ",")
ADJECTIVES = {code: name.lower() for code, names in NAMES.items() if (name := names["de"]).endswith("isch")}
ADJECTIVES |= {"la": "lateinisch"}


def german(text: str) -> str | None:
    """Return a number, written with a decimal point or comma, as German text; None if it is ambiguous."""
    if re.fullmatch(r"[+−-]?[0-9]+(?:,[0-9]+)?", text):
        return FORMAT.write(text.replace("−", "-").replace(",", "."))
    number = plain(text)
    return None if number is None or "," in text else FORMAT.write(number)


def in_language(call: Call) -> str | None:
    """Return the text of {{enS|word}}: englisch word."""
    if not call[1] or not call.has_only(most=1):
        return None
    return f"{ADJECTIVES[call.name.removesuffix('s')]} {call[1]}"


def scientific(call: Call) -> str | None:
    """Return the text of {{ZahlExp|1,5|6}}: 1,5·10^6."""
    number, power = call[1], plain(call[2])
    if (
        not re.fullmatch(r"[+−-]?[0-9.,]*", number)
        or power is None
        or not call.has_only("suffix", "post", most=2)
    ):
        return None
    return f"{number}{'·' if number else ''}10^{power}{spaced(call.get('suffix', 'post'))}"


def bruch(call: Call) -> str | None:
    """Return the text of {{Bruch|1|2}}: 1/2, and of {{Bruch|5|1|2}}: 5 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not all(word.isdecimal() for word in words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


def height(call: Call) -> str | None:
    """Return the text of {{Höhe|2345|DE-NN}}: 2345 m ü. NN."""
    number = german(call[1])
    if number is None or not call.has_only("link", most=2) or call[2] not in HEIGHT_SYSTEMS:
        return None
    # German text does not separate thousands in numbers of four digits.
    shown = call[1] if call[1].isdecimal() and len(call[1]) < 5 else number
    return f"{shown} m {HEIGHT_SYSTEMS[call[2]]}"


HEIGHT_SYSTEMS = {"DE-NN": "ü. NN", "DE-NHN": "ü. NHN", "AT": "ü. A.", "CH": "ü. M.", "IT": "s.l.m."}


RULES: dict[str, Rule] = {
    **rules([f"{code}s" for code in ADJECTIVES], in_language),
    **rules("ipa|lautschrift", argument(1)),
    **rules("zahlexp|zahl exp", scientific),
    **rules("bruch", bruch),
    **rules("höhe", height),
    **rules('"', quoted("„", "“")),
    **rules("'", constant("&#39;")),
    **rules("zitat", inline_quote),
    **rules("zitat-en|zitat-de", inline_quote),
    **rules("nowrap|nobr|nbsp wrap|schrift|schriftgröße", argument(1)),
    **rules("zeilenumbruch", constant(LINE_BREAK)),
    **rules("polytonisch|unicode|farsi|arab|arabische schrift|hebr|kursiv", argument(1)),
}
UNSEEN = names(
    """
anker|belege fehlen|belege|beleg|quelle|zukunft|veraltet|lückenhaft|überarbeiten|neutralität|nur liste
unverständlich|internationalisierung|deutschlandlastig|staatslastig|redundanztext|qs|löschantragstext
hauptartikel|siehe auch|begriffsklärung|begriffsklärungshinweis|dieser artikel|weiterleitungshinweis
normdaten|schwesterprojekt|navigationsleiste|folgenleiste|personendaten|sortierung|seitentitel|exzellent
lesenswert|gesprochene version|artikel eintragen|coordinate article|positionskarte|panorama
mehrspaltige liste|mehrspaltige liste ende|spaltenliste|mehrere bilder|imagemap|medien|audio artikel
toter link|archiv|dead link|nbsp artikel|absatz-l|absatz-r|absatz|leerzeile|überschriftensimulation
all coordinates|gesundheitshinweis|rechtshinweis|kapiteldok|sortkey|sortkeyname|fn|fnz|fnbox|fußnote
hinweisbaustein
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("navigationsleiste ", "folgenleiste ", "infobox ", "positionskarte")
UNSEEN_ENDINGS: tuple[str, ...] = ()
