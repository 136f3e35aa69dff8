"""Templates of the Dutch Wikipedia, according to their documentation pages (Sjabloon:<naam>)."""

from nbtrain.corpus.wiki.markup import fraction
from nbtrain.corpus.wiki.templates.call import Call, Rule, argument, names, rules
from nbtrain.corpus.wiki.templates.common import inline_quote, labels, mark


def breuk(call: Call) -> str | None:
    """Return the text of {{breuk|1|2}}: 1/2, and of {{breuk|3|1|2}}: 3 1/2."""
    words = call.words
    if not all(word.isdecimal() for word in words) or call.named or len(words) not in (2, 3):
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


# Templates that mark doubts after a word.
MARKS = """
bron?|feit|citatiegewenst|bronvermelding gewenst|wie?|wanneer?|welke?|waar?|hoezo?|verduidelijk
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **labels("nl", "{name}: {word}"),
    **rules("ipa", argument(1)),
    **rules("breuk", breuk),
    **rules("citaat|quote", inline_quote),
    **rules("aut|kleinkapitaal|smallcaps", argument(1)),
    **rules("nowrap|nobr|vast", argument(1)),
    **rules("klein|small", argument(1)),
}
UNSEEN = names(
    """
verouderd|actueel|hoofdartikel|zie hoofdartikel|zie ook|zie dp|zie artikel|zie artikelnaam|dp
doorverwijspagina|beginnetje|bron|bronnen|appendix|refs|zusterproject|navigatie|sorteersleutel|portaal
bibliografische informatie|clearleft|clearright|kolommen|kolommen2|kolommen3|einde kolommen|wikify|nopov
wiu|auteur|vlag|dode link|anker|zie|etalage|link etalage|coor title dm|coor title dms|coor title d
coor dms title|bijschrift|meerdere afbeeldingen
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("infobox ", "navigatie ", "taxobox ", "coor title", "zusterproject")
UNSEEN_ENDINGS: tuple[str, ...] = ()
