"""Templates of the Swedish Wikipedia, according to their documentation pages (Mall:<namn>)."""

from nbtrain.corpus.wiki.templates.call import Call, Rule, argument, constant, names, rules
from nbtrain.corpus.wiki.templates.common import english_number, inline_quote, labels, mark, power_of_ten
from nbtrain.corpus.wiki.templates.dates import date_of, written


def date(call: Call) -> str | None:
    """Return the text of {{födelsedatum|2000|5|1}}: 1 maj 2000, without an age."""
    found = date_of(call[1], call[2], call[3], "sv")
    return None if found is None or found[2] is None or not call.has_only(most=3) else written(found, "sv")


# Templates that mark doubts after a word.
MARKS = """
källa behövs|kb|kallabehovs|fotnot behövs|citat behövs|förtydliga|vem|när|vilka|vilken|hur|enligt vem
sidnummer saknas|ifrågasatt|ifrågasatt uppgift|dubiöst|verifieras|bättre källa
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **labels("sv", "{name}: {word}"),
    **rules("ipa|ipa2", argument(1)),
    **rules("e", power_of_ten()),
    **rules("nts|nummer", english_number),
    **rules("födelsedatum|födelsedatum och ålder|startdatum|slutdatum|dödsdatum", date),
    **rules("citat|citatbox|blockcitat", inline_quote),
    **rules("nowrap|nobr|ickebrytande", argument(1)),
    **rules("liten|mindre|stor", argument(1)),
    **rules("°", constant("°")),
}
UNSEEN = names(
    """
källor|ej källbelagd|faktagranskad|fotnoter|huvudartikel|se även|olika betydelser|gren|grensida
förgreningssida|robotskapad|auktoritetsdata|standardsortering|visatitel|faktamall|flaggbild|flaggikon
rensa|kolumner|kolumner-slut|kolumnlista|stycke behöver källor|källor stycke|utmärkt|rekommenderad|noter
referenser|fler bilder|inte att förväxla med|omdirigering|artikelursprung|artikelinfo|språkikon|fr ikon
död länk|dödlänk|låst|flytta
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("faktamall ", "navbox ", "robotskapad", "geobox", "taxobox")
UNSEEN_ENDINGS: tuple[str, ...] = ("stub", "-stub")
