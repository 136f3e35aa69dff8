"""Templates of the Italian Wikipedia, according to their documentation pages (Template:<nome>/man)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

from nbtrain.corpus.wiki.markup import fraction
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
from nbtrain.corpus.wiki.templates.common import inline_quote, power_of_ten, sub, sup
from nbtrain.corpus.wiki.templates.numbers import NumberFormat, plain
from nbtrain.corpus.wiki.templates.units import convert, unit_text, with_unit

FORMAT = NumberFormat(" ", ",")


def italian(text: str) -> str | None:
    """Return a number, written with a decimal point or comma, as Italian text; None if it is ambiguous."""
    text = text.replace("−", "-").replace("\u00a0", " ").strip()
    bare = text.replace(" ", "")
    if not re.fullmatch(r"[+-]?[0-9]+(?:[.,][0-9]+)?", bare) or (
        " " in text and not re.fullmatch(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+(?:[.,][0-9]+)?", text)
    ):
        return None
    return FORMAT.write(bare.replace(",", "."))


def measure(call: Call) -> str | None:
    """Return the text of {{M|1500|ul=m}}: 1 500 m.

    The text of {{M|1,5|e=6|u=kg}} is 1,5×10^6 kg, and the text of {{M|5|0,2}} is 5±0,2.
    """
    if not call.has_only("e", "exp", "u", "ul", "U", "UL", "um", "err", most=3):
        return None
    words = list(call.words)
    unit = call.get("u", "ul", "U", "UL", "um")
    if not unit and len(words) in (2, 3) and italian(words[-1]) is None:
        unit = words.pop()
    numbers = [italian(word) for word in words]
    if not 1 <= len(numbers) <= 2 or None in numbers or call.get("err"):
        return None
    shown = "±".join(map(str, numbers))
    if power := call.get("e", "exp"):
        if plain(power) is None:
            return None
        shown = f"({shown})×10^{plain(power)}" if len(numbers) == 2 else f"{shown}×10^{plain(power)}"
    if not unit:
        return shown
    text = unit_text(unit)
    return None if text is None else with_unit(shown, text)


def frazione(call: Call) -> str | None:
    """Return the text of {{frazione|1|2}}: 1/2, and of {{frazione|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not is_known(*words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


def nihongo(call: Call) -> str | None:
    """Return the text of {{nihongo|Tokyo|東京|Tōkyō|extra}}: Tokyo (東京, Tōkyō, extra)."""
    name, *inside = call.words or [""]
    if not name or len(inside) > 3 or not call.has_only("lead"):
        return None
    shown = ", ".join(word for word in inside if word)
    return f"{name} ({shown})" if shown else name


RULES: dict[str, Rule] = {
    **rules("m|misura", measure),
    **rules("e|exp10", power_of_ten()),
    **rules("ex|apice|exp", sup),
    **rules("ped|pedice", sub),
    **rules("frazione|frac", frazione),
    **rules("converti|convert|cvt", convert),
    **rules(
        "cn|citazione necessaria|senza fonte|chiarire|non chiaro|puntiglio|quando|chi|quale|dove|come",
        argument(1),
    ),
    **rules("citazione|quote", inline_quote),
    **rules("ta|nowrap|nobr|maiuscoletto|sc|piccolo|tutto attaccato", argument(1)),
    **rules("ndr", around("[", "]")),
    **rules("ipa", argument(1)),
    **rules("nihongo", nihongo),
    **rules("sp|spazi|-+", constant(" ")),
    **rules("co2", constant("CO2")),
    **rules("h2o", constant("H2O")),
    **rules("°", constant("°")),
    **rules("colore", last),
    **rules("sic", constant("[sic]")),
}
UNSEEN = names(
    """
f|nn|voci correlate|vedi anche|torna a|nota disambigua|disambigua|titolo errato|titolo sbagliato
interprogetto|portale|controllo di autorità|bio|tassobox|coord titolo|sf|bandiera|simbolo
immagine multipla|immagini multiple|galleria|colonne|colonne spezza|colonne fine|referenze|gruppo note
ancora|ancoranum|avvisounicode|aggiornare|tradotto da|vetrina|voce di qualità|citazione necessaria sezione
organizzare|recentismo|localismo|collegamenti esterni|dip|thesaurus bncf|registrazione|link rotto
collegamento interrotto
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("infobox ", "portale ", "stub ", "tassobox", "box ")
UNSEEN_ENDINGS: tuple[str, ...] = ()
