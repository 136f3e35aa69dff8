"""Templates of the Polish Wikipedia, according to their documentation pages (Szablon:<nazwa>/opis)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

from nbtrain.corpus.wiki.markup import fraction
from nbtrain.corpus.wiki.templates.call import Call, Rule, argument, around, constant, is_known, names, rules
from nbtrain.corpus.wiki.templates.common import inline_quote, power_of_ten
from nbtrain.corpus.wiki.templates.dates import date_of, parsed_date, written
from nbtrain.corpus.wiki.templates.numbers import NumberFormat, plain

FORMAT = NumberFormat(" ", ",", 5)


def liczba(call: Call) -> str | None:
    """Return the text of {{liczba|1234567}}: 1 234 567."""
    number = plain(call[1])
    return None if number is None or "," in call[1] or not call.has_only(most=1) else FORMAT.write(number)


def ulamek(call: Call) -> str | None:
    """Return the text of {{ułamek|1|2}}: 1/2, and of {{ułamek|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not is_known(*words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


def date(call: Call) -> str | None:
    """Return the text of {{data|2000-05-01}}, {{data|2000|5|1}}: 1 maja 2000."""
    if not call.has_only(most=3):
        return None
    found = date_of(call[1], call[2], call[3], "pl") if len(call.words) > 1 else parsed_date(call[1], "pl")
    return None if found is None or found[2] is None else written(found, "pl")


# Abbreviations of languages before a foreign word.
LANGUAGES = {
    "ang": "ang.",
    "niem": "niem.",
    "fr": "fr.",
    "ros": "ros.",
    "wł": "wł.",
    "hiszp": "hiszp.",
    "łac": "łac.",
    "czes": "czes.",
    "ukr": "ukr.",
    "jap": "jap.",
    "chiń": "chiń.",
    "gr": "gr.",
    "węg": "węg.",
    "port": "port.",
}

RULES: dict[str, Rule] = {
    **{f"{name}.": around(f"{short} ") for name, short in LANGUAGES.items()},
    **rules("liczba", liczba),
    **rules("ułamek", ulamek),
    **rules("data", date),
    **rules("e|×10", power_of_ten()),
    **rules("fakt|kiedy|kto|jaki|który|gdzie|według kogo|co|styl", argument(1)),
    **rules("ipa", around("[", "]")),
    **rules("ipa2|ipa3|apa", argument(1)),
    **rules("cytat|cytatd|cytat d", inline_quote),
    **rules("nowrap|nobr|małe|kapitaliki|duże", argument(1)),
    **rules("m2", constant("m²")),
    **rules("km2", constant("km²")),
    **rules("m3", constant("m³")),
    **rules("co2", constant("CO2")),
    **rules("h2o", constant("H2O")),
    **rules("sic|sic!", constant("[sic!]")),
    **rules("d|t|s", lambda call: None),
}
UNSEEN = names(
    """
r|uwaga|przypis|przypisy|uwagi|dopracować|źródła|inne znaczenia|osobny artykuł|zobacz też|główny artykuł
disambig|ujednoznacznienie|zalążek|siostrzane projekty|wikicytaty|wikisłownik|wikipodróże
kontrola autorytatywna|sortuj|domyślniesortuj|wyświetlanytytuł|medal|dobry artykuł|artykuł na medal|lnm
nawigacja|wieloobrazy|wiele obrazów|grafika razem|flaga|wyczyść|kotwica|spis treści|przewiń|nieaktualne
do weryfikacji|poprawić|integruj|szablon nawigacyjny|tytuł kursywą|taksobox|zoologia infobox
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("nawigacja ", "taksobox", "dopracować")
UNSEEN_ENDINGS: tuple[str, ...] = (" infobox", " – nawigacja", "-stub")
