"""Templates of the French Wikipedia, according to their documentation pages (Modèle:<Nom>)."""

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
from nbtrain.corpus.wiki.templates.common import inline_quote, labels, quoted, sub, sup
from nbtrain.corpus.wiki.templates.dates import date_of, written
from nbtrain.corpus.wiki.templates.numbers import NumberFormat, plain

FORMAT = NumberFormat(" ", ",")
ROMAN = re.compile("[IVXLCDM]{1,8}")
NUMBER = re.compile(r"[+−-]?[0-9][0-9 ]*(?:[.,][0-9 ]*[0-9])?")
POWERS = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
EXPONENT = re.compile("[-−]?[1-9]")


def french(text: str) -> str | None:
    """Return a number of {{unité}} in French format; None if the text is not a number or is ambiguous.

    The text may have a point or a comma before its decimals, and spaces between its digits.
    """
    text = text.replace("\u00a0", " ").replace("&nbsp;", " ").replace("−", "-").strip()
    if not NUMBER.fullmatch(text):
        return None
    bare = text.replace(" ", "")
    if "," in bare and "." in bare:
        return None
    return FORMAT.write(bare.replace(",", "."))


def _numbers(text: str) -> str | None:
    """Return a text such as "1500 à 2000" with its numbers in French format; None if one is ambiguous."""
    parts = re.split(r"([0-9][0-9 ]*(?:[.,][0-9]+)?)", text)
    if len(parts) < 3 or not is_known(text):
        return None
    shown = []
    for index, part in enumerate(parts):
        if index % 2:
            number = french(part)
            if number is None:
                return None
            shown.append(number + " " * (len(part) - len(part.rstrip())))
        else:
            shown.append(part)
    return "".join(shown)


def unit(call: Call) -> str | None:
    """Return the text of {{unité|1500|m|2}}: 1 500 m².

    The text of {{unité|1.5|e=6|kg}} is 1,5×10^6 kg, and the text of {{unité|30|à|40|km}} is 30 à 40 km.
    """
    if not call.has_only("e", "exp", "±", "+", "-", "à", "et", "ou", "suffixe", most=8):
        return None
    words = list(call.words)
    if not words:
        return None
    if len(words) == 1 and not call.named:
        match = re.fullmatch(
            r"([+−-]?[0-9][0-9 ]*(?:[.,][0-9]+)?)\s*([^0-9]*)", words[0].replace("\u00a0", " ")
        )
        number = french(match[1]) if match else None
        return None if match is None or number is None else f"{number} {match[2]}".strip()
    shown = french(words.pop(0))
    if shown is None:
        return None
    for key in ("à", "et", "ou", "±"):
        if call.get(key):
            other = french(call.get(key))
            if other is None:
                return None
            shown = f"{shown}±{other}" if key == "±" else f"{shown} {key} {other}"
    if call.get("+", "-", "exp", "suffixe"):
        return None
    while len(words) >= 2 and words[0] in ("à", "et", "ou", "x", "×", "-", "–"):
        other = french(words[1])
        if other is None:
            return None
        mark = {"x": " × ", "×": " × ", "-": "–", "–": "–"}.get(words[0], f" {words[0]} ")
        shown, words = f"{shown}{mark}{other}", words[2:]
    if call.get("e"):
        power = plain(call.get("e"))
        if power is None:
            return None
        shown = f"{shown}×10^{power}"
    units = []
    while words:
        name, words = words[0], words[1:]
        if not name or name[0].isdigit() or not is_known(name):
            return None
        if words and EXPONENT.fullmatch(words[0]):
            name, words = f"{name}{words[0].translate(POWERS)}", words[1:]
        elif words and not words[0]:
            words = words[1:]
        units.append(name)
    if not units:
        return shown
    return f"{shown} {' '.join(units)}".replace(" /", "/")


def times(call: Call) -> str | None:
    """Return the text of {{dunité|3|4|m}}: 3 × 4 m."""
    count = {"dunité": 2, "tunité": 3}[call.name]
    numbers = [french(call[number]) for number in range(1, count + 1)]
    if None in numbers or not call[count + 1] or not call.has_only(most=count + 1):
        return None
    return f"{' × '.join(map(str, numbers))} {call[count + 1]}"


def number_and_noun(call: Call) -> str | None:
    """Return the text of {{nombre|250000|habitants}}: 250 000 habitants."""
    if not call.has_only(most=2) or not call.words:
        return None
    if len(call.words) == 1:
        return _numbers(call[1])
    number = french(call[1])
    return None if number is None or not is_known(call[2]) else f"{number} {call[2]}"


def century(before: str = "", after: str = "", joint: str = "") -> Rule:
    """Return the rule for templates that show centuries.

    {{s-|XIX}} shows XIXe siècle, and {{sp-|XVII|au|XVIII}} shows XVIIe au XVIIIe siècle.
    """

    def rule(call: Call) -> str | None:
        words = [word for word in call.words if word not in ("e", "er")]
        if joint:
            if len(words) == 3:
                first, between, second = words
            elif len(words) == 2 and joint != " ":
                first, second, between = words[0], words[1], joint.strip()
            else:
                return None
            if not ROMAN.fullmatch(first) or not ROMAN.fullmatch(second):
                return None
            plural = "s" if between == "et" else ""
            return f"{_ordinal(first)} {between} {_ordinal(second)} siècle{plural}{after}"
        if len(words) != 1 or not ROMAN.fullmatch(words[0]) or not call.has_only(most=3):
            return None
        return f"{before}{_ordinal(words[0])} siècle{after}"

    return rule


def _ordinal(roman: str) -> str:
    return f"{roman}{'er' if roman == 'I' else 'e'}"


def date(call: Call) -> str | None:
    """Return the text of {{date-|14|7|1789}}, {{date|14 juillet 1789}}: 14 juillet 1789."""
    words = [word for word in call.words if word not in ("en musique", "en sport", "en aéronautique")]
    if len(words) in (1, 4) and not re.fullmatch("[0-9]+", words[0]):
        return (
            words[0]
            if is_known(words[0]) and len(words) == 1 and re.search("[0-9]{3,4}$", words[0])
            else None
        )
    if len(words) == 4:  # an activity, of which the year's page is linked
        words = words[:3]
    if len(words) != 3 or call.get("âge", "julien", "républicain", "qualificatif"):
        return None
    day, month, year = words
    if not day:
        found = date_of(year, month, "", "fr")
    else:
        found = date_of(year, month, day.removesuffix("er"), "fr")
    return None if found is None else written(found, "fr")


def age_at(call: Call) -> str | None:
    """Return the text of {{Date de décès|14|7|1789}}: 14 juillet 1789; None with âge=, which adds the age."""
    if not call.has_only("âge", most=6):
        return None
    found = date_of(call[3], call[2], call[1], "fr")
    return None if found is None or call.get("âge") else written(found, "fr")


def hour(call: Call) -> str | None:
    """Return the text of {{heure|15|30}}: 15 h 30."""
    parts = call.words
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts) or call.named:
        return None
    shown = f"{int(parts[0])} h"
    if len(parts) > 1:
        shown += f" {int(parts[1]):02}"
    return f"{shown} min {int(parts[2]):02} s" if len(parts) > 2 else shown


def lasting(call: Call) -> str | None:
    """Return the text of {{durée|1|20|30}}: 1 h 20 min 30 s."""
    parts = [*call.words, "", "", ""][:3]
    if not any(parts) or not call.has_only(most=3) or not all(part.isdecimal() for part in parts if part):
        return None
    return " ".join(f"{part} {name}" for part, name in zip(parts, ("h", "min", "s"), strict=True) if part)


def numbered(singular: str, plural: str) -> Rule:
    """Return the rule for templates such as {{n°|5}}, which shows no 5, and {{p.|12-15}}: p. 12-15."""
    return lambda call: f"{plural if plural and re.search('[-–,]', call[1]) else singular} {call[1]}".strip()


def quotation(call: Call) -> str | None:
    """Return the text of {{citation|texte}}: « texte »."""
    text = call.get("texte", "1", "contenu") or call[1]
    return f"« {text} »" if text else None


def foreign_quotation(call: Call) -> str | None:
    """Return the text of {{citation étrangère|langue=en|texte}}: « texte »."""
    text = call.get("texte", "1", "contenu") or (
        call[1] if call.get("langue", "lang") else call[2] or call[1]
    )
    return f"« {text} »" if text else None


def language(call: Call) -> str | None:
    """Return the text of {{lang|en|texte}}, {{langue|en|texte=mot}}: the text."""
    return call.get("texte", "text") or call[2] or None


def link(call: Call) -> str | None:
    """Return the text of {{lien|lang=en|trad=Title|fr=Titre|texte=mot}}: the text of the link."""
    return call.get("texte", "fr") or call[1] or call.get("trad") or None


def japanese(call: Call) -> str | None:
    """Return the text of {{japonais|Tokyo|東京|Tōkyō}}: Tokyo (東京, Tōkyō)."""
    name, *inside = call.words or [""]
    if not call.has_only("extra", most=4) or not name:
        return None
    shown = ", ".join(word for word in (*inside, call.get("extra")) if word)
    return f"{name} ({shown})" if shown else name


def abbreviation(short: str) -> Rule:
    """Return the rule for templates such as {{M.|Dupont}}, which shows M. Dupont."""
    return lambda call: f"{short} {' '.join(call.words)}".strip()


def ordinal_number(call: Call) -> str | None:
    """Return the text of {{2e}}: 2e, the name of the template."""
    return call.name if not call.words else None


def fractions(call: Call) -> str | None:
    """Return the text of {{fraction|1|2}}: 1/2, and of {{fraction|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) == 3:
        return fraction(*words) if is_known(*words) else None
    return fraction("", *words) if len(words) == 2 and is_known(*words) else None


ROYAL = re.compile(r"(?:[A-ZÉÈÎ][\w’'-]+ )+[IVXL]{1,5}(?:er|re)?")


def unlisted(head: str, call: Call) -> str | None:
    """Return the text of {{Louis XIV}} and similar templates, which keep a name on one line: the name."""
    head = head.strip().replace("_", " ")
    return head if ROYAL.fullmatch(head) and not call.words else None


def before_christ(call: Call) -> str | None:
    """Return the text of {{av JC}}: av. J.-C."""
    return "av. J.-C." if not call.words else None


def _roman(number: int) -> str:
    shown = ""
    for value, letters in ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while number >= value:
            shown, number = shown + letters, number - value
    return shown


CENTURIES = {
    f"{_ordinal(_roman(number))} siècle{after}": None
    for number in range(1, 22)
    for after in ("", " av. J.-C.")
}

RULES: dict[str, Rule] = {
    **rules("unité|unite|unités|mesure", unit),
    **rules("nombre", number_and_noun),
    **rules("dunité|tunité", times),
    **rules("s-|s|siècle", century()),
    **rules("-s-|-s|av jc siècle", century(after=" av. J.-C.")),
    **rules("sp-|sp|s2p", century(joint=" ")),
    **rules("s2-|s2", century(joint=" et ")),
    **rules("-sp-|-sp", century(after=" av. J.-C.", joint=" ")),
    **rules("-s2-|-s2", century(after=" av. J.-C.", joint=" et ")),
    **{name.lower(): constant(name) for name in CENTURIES},
    **rules("date|date-|jma", date),
    **rules("date de naissance|date de naissance-|date naissance", date),
    **rules("date de décès|date de décès-", age_at),
    **rules("heure", hour),
    **rules("durée", lasting),
    **rules("n°|no|numéro", numbered("no", "nos")),
    **rules("nos|n°s|numéros", numbered("nos", "nos")),
    **rules("p.", numbered("p.", "")),
    **rules("nb p.", lambda call: f"{call[1]} p." if call[1] else None),
    **rules("vol.", numbered("vol.", "")),
    **rules("chap.", numbered("chap.", "")),
    **rules("t.|tome", numbered("t.", "")),
    **rules("e|ème|eme|ième", lambda call: None if call.words else "e"),
    **rules("er", constant("er")),
    **rules("re|ère", constant("re")),
    **rules("nd", constant("nd")),
    **rules("nde", constant("nde")),
    **rules("o", constant("o")),
    **rules([f"{number}e" for number in range(2, 100)] + ["1er", "1re", "2nd", "2nde"], ordinal_number),
    **rules("exp|exposant", sup),
    **rules("ind|indice", sub),
    **rules("fraction|frac|sfrac", fractions),
    **rules("citation|cita|«|guil", quotation),
    **rules("citation étrangère|citation langue|lang-citation", foreign_quotation),
    **rules("citation bloc|début citation|citation nouveau paragraphe", inline_quote),
    **rules("incise", quoted("– ", " –")),
    **rules("lang|langue|lien langue", language),
    **labels("fr", "en {name} : {word}"),
    **rules("lien|lien interlangue", link),
    **rules("japonais|nihongo", japanese),
    **rules("titre en langue", argument(2)),
    **rules(
        "terme défini|abréviation|abr|abrd|info|petit|clarifier|petites capitales|pc|sc",
        argument(1),
    ),
    **rules(
        "référence nécessaire|référence souhaitée|refnec|refsou|référence à confirmer",
        argument(1),
    ),
    **rules(
        "passage promotionnel|passage non neutre|pertinence détail|passage évasif|quand|qui|quoi",
        argument(1),
    ),
    **rules(
        "référence non conforme|référence insuffisante|citation nécessaire|précision nécessaire|formulation",
        argument(1),
    ),
    **rules(
        "quand?|évasif|par qui|lequel|laquelle|lesquels|où|combien|comment|pourquoi|non neutre", argument(1)
    ),
    **rules("interprétation personnelle|source à préciser", argument(1)),
    **rules("nobr|nowrap|insécable", argument(1)),
    **rules("nobr romains", lambda call: None),
    **rules("m.", abbreviation("M.")),
    **rules("mme", abbreviation("Mme")),
    **rules("mlle", abbreviation("Mlle")),
    **rules("mm.", abbreviation("MM.")),
    **rules("dr", abbreviation("Dr")),
    **rules("pr", abbreviation("Pr")),
    **rules("me", abbreviation("Me")),
    **rules("mgr", abbreviation("Mgr")),
    **rules("st", abbreviation("St")),
    **rules("ste", abbreviation("Ste")),
    **rules("av jc|av. j.-c.|avjc", before_christ),
    **rules("ap jc|ap. j.-c.|apjc", constant("apr. J.-C.")),
    **rules("sic", constant("[sic]")),
    **rules("api|ipa|phon|prononciation|api-fr", argument(1)),
    **rules("msapi|msphon", argument(1)),
    **rules("graphie", around("⟨", "⟩")),
    **rules("tiret|–", constant("–")),
    **rules("-'", constant("&#39;")),
    **rules("′", constant("′")),
    **rules("couleur|fontcolor", last),
    **rules("co2", constant("CO2")),
    **rules("h2o", constant("H2O")),
    **rules("e-", constant("e⁻")),
    **rules("dollar|dollars", lambda call: None),
    **rules("convert|cvt|conversion|val", lambda call: None),
}
UNSEEN = names(
    """
notes|harvsp|r|,|ancre|référence nécessaire section|à sourcer|source|sources|admissibilité
article détaillé|article détaillé2|articles détaillés|voir homonymes|voir homonyme|autres projets|palette
portail|portails|ébauche|ébauches|homonymie|paronymie|confusion|patronyme|légende plume|colonnes
début de colonnes|fin de colonnes|saut de colonne|références|références nombreuses|notes et références
bases|bases audiovisuel|liens|dictionnaires|autorité|commentaire biblio|bons articles|article de qualité
bon article|coord titre|titre en italique|titre mis en forme|clé de tri|semi-protection
semi-protection longue|protection|désaccord de neutralité|désaccord de pertinence|travaux|en cours
à recycler|à vérifier|à wikifier|à illustrer|à délister|à actualiser|à mettre à jour|section à sourcer
drapeau|drapeau2|image|images|arbre|arbre généalogique|boîte déroulante|boîte déroulante début
boîte déroulante fin|message galerie|lire|écouter|loupe|voir aussi|voir|sommaire à droite|sommaire
sommaire à gauche|internationaliser|ton|ton de promotion|style|méta bandeau|unicode titre|en-tête label
page h|caractères japonais|fin de citation|fin citation|crédit d'auteurs|traduction/référence
élément de bibliographie|géolocalisation
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("infobox ", "palette ", "portail ", "ébauche ", "taxobox ", "méta ")
UNSEEN_ENDINGS: tuple[str, ...] = ()
