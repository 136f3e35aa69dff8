"""Templates of the Spanish Wikipedia, according to their documentation pages (Plantilla:<nombre>)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

from nbtrain.corpus.wiki.markup import fraction
from nbtrain.corpus.wiki.templates.call import Call, Rule, argument, around, constant, is_known, names, rules
from nbtrain.corpus.wiki.templates.common import inline_quote, labels, mark, power_of_ten, quoted, spaced
from nbtrain.corpus.wiki.templates.dates import date_of, written
from nbtrain.corpus.wiki.templates.numbers import NumberFormat, plain
from nbtrain.corpus.wiki.templates.units import convert

FORMAT = NumberFormat(" ", ",", 5)
ROMAN = re.compile("[IVXLCDM]{1,8}")
POWERS = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def spanish(text: str) -> str | None:
    """Return a number as Spanish text; None if a point in it may separate thousands instead of decimals."""
    text = text.replace("−", "-").replace("\u00a0", "").replace(" ", "")
    if re.fullmatch("[+-]?[0-9]+(?:,[0-9]+)?", text):
        return FORMAT.write(text.replace(",", "."))
    if re.fullmatch(r"[+-]?[0-9]+\.[0-9]{1,2}|[+-]?[0-9]+\.[0-9]{4,}", text):
        return FORMAT.write(text)
    return None


def unit(call: Call) -> str | None:
    """Return the text of {{unidad|12345|km}}: 12 345 km, and of {{unidad|5|m|2}}: 5 m²."""
    words = list(call.words)
    if not words or not call.has_only(most=6):
        return None
    shown = spanish(words.pop(0))
    if shown is None:
        return None
    units = []
    while words:
        name, words = words[0], words[1:]
        if not name or name[0].isdigit() or not is_known(name):
            return None
        if words and re.fullmatch("[-−]?[1-9]", words[0]):
            name, words = f"{name}{words[0].translate(POWERS)}", words[1:]
        units.append(name)
    return f"{shown} {' '.join(units)}".strip()


def date(call: Call) -> str | None:
    """Return the text of {{fecha|1|5|2000}}: 1 de mayo de 2000, without an age."""
    found = date_of(call[3], call[2], call[1], "es")
    return None if found is None or not call.has_only("edad", most=3) else written(found, "es")


def century(call: Call) -> str | None:
    """Return the text of {{siglo|XIX||s}}: siglo XIX, and of {{siglo|I|a}}: I a. C.

    The third argument selects the word before the number.
    """
    roman, era, word = [*call.words, "", "", ""][:3]
    if not ROMAN.fullmatch(roman) or era not in ("", "a") or word not in ("", "s", "S", "s1", "1"):
        return None
    if not call.has_only(most=3):
        return None
    shown = f"siglo {roman}" if word in ("s", "s1") else f"Siglo {roman}" if word == "S" else roman
    return f"{shown}{' a. C.' if era else ''}"


def fraccion(call: Call) -> str | None:
    """Return the text of {{fracción|1|2}}: 1/2, and of {{fracción|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not is_known(*words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


def scientific(call: Call) -> str | None:
    """Return the text of {{notación científica|1.5|6|kg}}: 1,5×10^6 kg."""
    number, power = spanish(call[1]), plain(call[2])
    if number is None or power is None or not call.has_only(most=3):
        return None
    return f"{number}×10^{power}{spaced(call[3])}"


def nihongo(call: Call) -> str | None:
    """Return the text of {{nihongo|Tokio|東京|Tōkyō}}: Tokio (東京, Tōkyō)."""
    name, *inside = call.words or [""]
    if not name or len(inside) > 2 or call.named:
        return None
    shown = ", ".join(word for word in inside if word)
    return f"{name} ({shown})" if shown else name


# Templates that mark doubts after a word.
MARKS = """
cita requerida|cr|añadir referencias|fuente requerida|aclaración requerida|aclarar|cuándo|quién|cuál|dónde
según quién|por quién|verificar|verificación requerida|no en la fuente|mejor fuente|ortografía
página requerida
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **labels("es", "en {name}, {word}"),
    **rules("unidad", unit),
    **rules("fecha|fecha de inicio|fecha de nacimiento|fecha de fallecimiento|fecha de inicio y edad", date),
    **rules("siglo", century),
    **rules("fracción|fraccion|frac", fraccion),
    **rules(
        "notación científica|e", lambda call: scientific(call) if call.name != "e" else power_of_ten()(call)
    ),
    **rules("convertir", convert),
    **rules(
        "cita|citación|cita larga|cquote|bquote",
        lambda call: inline_quote(call) if call.name != "cita" else quoted("«", "»")(call),
    ),
    **rules("nihongo", nihongo),
    **rules("afi|ipa", around("[", "]")),
    **rules(
        "versalita|versales|versalitas|esd|nowrap|nobr|pequeño|sin negrita|abreviatura|abreviación|abr",
        argument(1),
    ),
    **rules("sic", constant("(sic)")),
    **rules("ill|enlace ajeno|enlace interlingüístico|enlace sin coordinar", lambda call: None),
    **rules("ordinal", lambda call: None),
}
UNSEEN = names(
    """
referencias adicionales|refnf|refnest|harvsp|harvnp|artículo principal|ap|vt|véase también|véase
otros usos|redirige aquí|distinguir|no confundir|desambiguación|desambig|ficha|esbozo|destacado
artículo destacado|artículo bueno|control de autoridades|ordenar|título en cursiva|títulos incorrectos
wikcionario|wikinoticias|wikiproyecto|listaref|referencias|notas|bandera|bandera2|geodatos|limpiar
columnas|nueva columna|final columnas|inicio de columnas|sucesión|traducido de|traducido ref|wikificar
en obras|plagio|posible copyvio|bulo|fuentes|fusionar|mejorar redacción|punto de vista|neutralidad
promocional|contextualizar|desactualizado|actualizar|ancla|enlace roto|enlaces rotos|coord título
ubicación|imagen múltiple|demografía|interproyecto|identificador carece de artículo
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = (
    "ficha ",
    "ficha de ",
    "portal ",
    "taxobox",
    "navegación",
    "imagen múltiple",
)
UNSEEN_ENDINGS: tuple[str, ...] = ()
