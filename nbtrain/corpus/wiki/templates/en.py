"""Templates of the English Wikipedia, according to their documentation pages (Template:<name>/doc)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re
from decimal import Decimal

from nbtrain.corpus.wiki.markup import BAR, LINE_BREAK
from nbtrain.corpus.wiki.templates import dates
from nbtrain.corpus.wiki.templates.call import (
    Call,
    Rule,
    argument,
    around,
    constant,
    is_known,
    is_yes,
    last,
    names,
    rules,
)
from nbtrain.corpus.wiki.templates.common import (
    EQUALS,
    MARKS,
    chem2,
    english_number,
    identifier,
    in_english_format,
    listed,
    ordinal_suffix,
    power_of_ten,
    spaced,
)
from nbtrain.corpus.wiki.templates.dates import (
    date_of,
    date_rule,
    is_day_first,
    parsed_date,
    written,
)
from nbtrain.corpus.wiki.templates.language_names import NAMES, language_name
from nbtrain.corpus.wiki.templates.numbers import ENGLISH_FORMAT, plain, rounded

OTHER_LANGUAGES = {
    "ber": "Berber languages",
    "sh": "Serbo-Croatian",
    "aln": "Gheg Albanian",
    "brh": "Brahui",
    "ota": "Ottoman Turkish",
    "pa": "Punjabi",
    "nah": "Nahuatl",
    "zh": "Chinese",
    "cmn": "Mandarin Chinese",
    "nan": "Hokkien",
    "hak": "Hakka",
    "roa": "Romance languages",
    "sco": "Scots",
    "scn": "Sicilian",
    "vec": "Venetian",
    "yue": "Cantonese",
    "akk": "Akkadian",
    "rus": "Russian",
    "kmr": "Kurmanji",
    "ckb": "Central Kurdish",
    "nds": "Low German",
    "gsw": "Alemannic German",
}


def _language(code: str) -> str | None:
    code = code.lower()
    return (
        OTHER_LANGUAGES.get(code) or OTHER_LANGUAGES.get(code.partition("-")[0]) or language_name(code, "en")
    )


def _labelled(code: str, text: str, romanized: str, literal: str, call: Call) -> str | None:
    name = _language(code)
    if name is None or not text:
        return None
    label = "" if call.get("label") == "none" else f"{call.get('label') or name}: "
    shown = f"{label}{text}"
    if romanized:
        shown += f", romanized: {romanized}"
    return f"{shown}, lit. '{literal}'" if literal else shown


def langx(call: Call) -> str | None:
    """Return the text of {{langx|de|München}}, which is "German: München"."""
    if not call.has_only("text", "translit", "translation", "lit", "label", "script", "sc", most=4):
        return None
    romanized = call.get("translit") or call[3]
    literal = call.get("translation", "lit") or call[4]
    return _labelled(call[1], call.get("text") or call[2], romanized, literal, call)


def lang_xx(call: Call) -> str | None:
    """Return the text of {{lang-de|München}}: the same text as {{langx|de|München}}."""
    if not call.has_only("text", "translit", "translation", "lit", "label", "script", "sc", most=3):
        return None
    code = call.name.partition("-")[2]
    romanized = call.get("translit") or call[2]
    literal = call.get("translation", "lit") or call[3]
    return _labelled(code, call.get("text") or call[1], romanized, literal, call)


def lang_rus(call: Call) -> str | None:
    """Return the text of {{lang-rus|Слово|slovo|p=slovə}}: Russian: Слово, romanized: slovo, IPA: ..."""
    if not call[1] or not call.has_only("r", "p", "a", "y", "label", most=3):
        return None
    shown = f"Russian: {call[1]}"
    if romanized := call.get("r") or call[2]:
        shown += f", romanized: {romanized}"
    return f"{shown}, IPA: [{call.get('p')}]" if call.get("p") else shown


def ipa(call: Call) -> str | None:
    """Return the text of {{IPA|de|ˈmʏnçn̩}}: the sounds in square brackets, and of {{IPA|/a/}}: /a/."""
    if len(call.words) == 1:
        return call[1]
    if _language(call[1]) is None or len(call.words) > 5:
        return call[1] if re.search(r"[/\[]", call[1]) and len(call.words) == 1 else None
    text = call[2]
    return text if text[:1] in ("[", "/") else f"[{text}]"


def ipa_xx(call: Call) -> str | None:
    """Return the text of {{IPA-de|ˈmʏnçn̩|pron}}: the sounds in square brackets."""
    return f"[{call[1]}]" if call[1] else None


IPA_LABELS = frozenset(
    [
        "lang",
        "local",
        "pron",
        "us",
        "uk",
        "also",
        "eng",
        "audio",
        "ipa",
        "file",
        "help",
        "uklang",
        "uspron",
        "ukpron",
        "alsous",
    ]
)
IPA_COUNTRIES = {"us": "US: ", "uk": "UK: ", "usalso": "US also ", "ukalso": "UK also ", "also": "also "}


def ipac_en(call: Call) -> str | None:
    """Return the text of {{IPAc-en|ˈ|m|juː|n|ɪ|k}}: /ˈmjuːnɪk/."""
    label, sounds = "", []
    for word in call.words:
        known = word.lower().replace(" ", "").replace(",", "")
        if known in IPA_COUNTRIES:
            label += IPA_COUNTRIES[known]
        elif known in IPA_LABELS or word.endswith((".ogg", ".wav", ".oga", ".mp3")):
            continue
        else:
            sounds.append(word.replace("_", " "))
    return f"{label}/{''.join(sounds).strip()}/" if sounds else ""


def respell(call: Call) -> str | None:
    """Return the text of {{respell|MEW|nik}}: MEW-nik."""
    shown = ""
    for word in call.words:
        if word in ("_", "' ", ","):
            shown += " " if word == "_" else word
        else:
            shown += f"-{word}" if shown and not shown.endswith((" ", "'")) else word
    return shown


def nihongo(call: Call) -> str | None:
    """Return the text of {{nihongo|English|kanji|romaji|extra|more}}: English (kanji, romaji, extra) more."""
    english, kanji, romaji, extra, extra2 = [*call.words, "", "", "", "", ""][:5]
    if not call.has_only("lead", "extra", "extra2", "post", most=5):
        return None
    inside = ", ".join(word for word in (kanji, romaji, call.get("extra") or extra) if word)
    if not english and not kanji and not romaji:
        return None
    if not english:
        first, *others = (word for word in (romaji or kanji, kanji if romaji else "", extra) if word)
        english, inside = first, ", ".join(others)
    shown = f"{english} ({inside})" if inside else english
    return f"{shown}{spaced(call.get('extra2', 'post') or extra2)}"


CHINESE = {
    "c": "Chinese",
    "s": "simplified Chinese",
    "t": "traditional Chinese",
    "p": "pinyin",
    "tp": "Tongyong Pinyin",
    "w": "Wade–Giles",
    "j": "Jyutping",
    "cy": "Cantonese Yale",
    "sl": "Sidney Lau",
    "poj": "Pe̍h-ōe-jī",
    "zhu": "Zhuyin Fuhao",
    "l": "lit.",
    "tr": "trans.",
}


def chinese(call: Call) -> str | None:
    """Return the text of {{zh|c=慕尼黑|p=Mùníhēi}}: Chinese: 慕尼黑; pinyin: Mùníhēi."""
    if not call.has_only(*CHINESE, "labels", "links", "first", "scase", most=0):
        return None
    order = list(CHINESE)
    if "t" in call.get("first"):
        order = ["c", "t", "s", *order[3:]]
    parts = []
    for key in order:
        if value := call.get(key):
            value = f"'{value}'" if key in ("l", "tr") else value
            name = CHINESE[key]
            parts.append(
                value if call.get("labels") == "no" else f"{name}{' ' if key in ('l', 'tr') else ': '}{value}"
            )
    return "; ".join(parts) or None


def ship(prefix: str) -> Rule:
    """Return the rule for ship templates such as {{HMS|Ajax|22|6}}, which shows HMS Ajax.

    The bits of the third argument select the prefix (4), the name (2) and the number (1).
    """

    def rule(call: Call) -> str | None:
        name, number, shown = [*call.words, "", "", ""][:3]
        bits = int(shown) if shown.isdecimal() else 7 if not shown else 0
        if not name or not bits or bits in (4, 5) or bits > 7 or not call.has_only("up", most=3):
            return None
        number = f"({number})" if number and bits != 1 else number
        return " ".join(part for part, bit in ((prefix, 4), (name, 2), (number, 1)) if part and bits & bit)

    return rule


def as_of(call: Call) -> str | None:
    """Return the text of {{as of|2014|3|lc=y}}: as of March 2014."""
    if not call.has_only("alt", "lc", "since", "df", "pre", "post", "bare", "day", "month", "year", most=3):
        return None
    if call.get("alt"):
        return call.get("alt")
    date = (
        date_of(call[1], call[2], call[3])
        if call[1].isdecimal()
        else parsed_date(call[1])
        if most_one(call)
        else None
    )
    if date is None:
        return None
    shown = written(date, "en", call.get("df").upper() != "US")
    if is_yes(call.get("bare")):
        return f"{shown}{call.get('post')}"
    words = "Since" if is_yes(call.get("since")) else "As of"
    words = words.lower() if is_yes(call.get("lc")) else words
    return f"{words} {call.get('pre')}{spaced('') if not call.get('pre') else ' '}{shown}{call.get('post')}"


def most_one(call: Call) -> bool:
    """Return whether a call has at most one positional argument."""
    return len(call.words) <= 1


def death_date_and_age(call: Call) -> str | None:
    """Return the text of {{death date and age|2000|5|1|1950|1|1}}: May 1, 2000 (aged 50)."""
    if not call.has_only("df", "mf", most=6):
        return None
    end, born = date_of(call[1], call[2], call[3]), date_of(call[4], call[5], call[6])
    if end is None or born is None:
        return None
    age = dates.years_between(born, end)
    if age is None:
        return None
    return f"{written(end, 'en', is_day_first(call))} (aged {age})"


def age(call: Call) -> str | None:
    """Return the text of {{age|1950|1|1|2000|5|1}}: 50.

    With only one date, the age depends on the day on which the page is read, so the text is unknown.
    """
    if not call.has_only(most=6):
        return None
    born, end = date_of(call[1], call[2], call[3]), date_of(call[4], call[5], call[6])
    years = dates.years_between(born, end) if born and end else None
    return None if years is None else str(years)


def age_in_days(call: Call) -> str | None:
    """Return the text of {{age in days|2000|1|1|2001|1|1}}: 366."""
    if not call.has_only(most=6):
        return None
    born, end = date_of(call[1], call[2], call[3]), date_of(call[4], call[5], call[6])
    days = [dates.ordinal_day(date) if date else None for date in (born, end)]
    if days[0] is None or days[1] is None or days[1] < days[0]:
        return None
    return ENGLISH_FORMAT.write(str(days[1] - days[0]))


def sortable_date(call: Call) -> str | None:
    """Return the text of {{dts|2000|5|1}}, {{dts|1 May 2000}}, {{date|2000-05-01|mdy}}: a date."""
    if not call.has_only("format", "nowrap", "addkey", "abbr", most=3) or call.get("abbr", "format") not in (
        "",
        "dmy",
        "mdy",
        "off",
    ):
        return None
    form = call.get("format").lower()
    if len(call.words) >= 2 and call[1].isdecimal():
        date = date_of(call[1], call[2], call[3])
    else:
        date = parsed_date(call[1])
        form = (call[2] or form).lower()
    if date is None or form not in ("", "dmy", "mdy"):
        return None
    if date[2] is not None and not form:
        return (
            call[1] if most_one(call) and not re.fullmatch("[0-9-]+", call[1]) else written(date, "en", False)
        )
    return written(date, "en", form != "mdy")


def old_style_date(call: Call) -> str | None:
    """Return the text of {{OldStyleDate|2 February|1905|20 January}}: 2 February [O.S. 20 January] 1905."""
    if len(call.words) != 3 or not is_known(*call.words):
        return None
    if not call[2]:
        return f"{call[1]} [O.S. {call[3]}]"
    separator = "," if re.search("[0-9]$", call[1]) and "[" not in call[1] else ""
    return f"{call[1]} [O.S. {call[3]}]{separator} {call[2]}"


def circa(call: Call) -> str | None:
    """Return the text of {{circa|1500|1550}}: c. 1500 – c. 1550."""
    if not call.has_only("lk", most=2):
        return None
    return f"c. {call[1]} – c. {call[2]}" if call[2] else f"c. {call[1]}" if call[1] else "c."


def span_of(prefix: str) -> Rule:
    """Return the rule for templates such as {{reign|1500|1550}}, which shows r. 1500–1550."""

    def rule(call: Call) -> str | None:
        if not call.has_only("lk", "cx", most=2) or not is_known(*call.words):
            return None
        dash = " – " if " " in f"{call[1]}{call[2]}" else "–"
        return f"{prefix} {call[1]}{dash if call[2] else ''}{call[2]}" if call[1] else prefix

    return rule


def duration(call: Call) -> str | None:
    """Return the text of {{duration|m=3|s=20}}, {{duration|3:20}}: 3:20."""
    if not call.has_only("h", "m", "s"):
        return None
    parts = [call.get(key) for key in "hms"]
    if any(parts):
        hours, minutes, seconds = parts
        if not all(part.isdecimal() for part in parts if part):
            return None
        if hours:
            return f"{int(hours)}:{int(minutes or 0):02}:{int(seconds or 0):02}"
        return f"{int(minutes or 0)}:{int(seconds or 0):02}"
    return call[1] if re.fullmatch(r"(?:[0-9]+:)?[0-9]{1,2}:[0-9]{2}", call[1]) and most_one(call) else None


def ordinal(call: Call) -> str | None:
    """Return the text of {{ordinal|5}}: 5th."""
    if not call[1].isdecimal() or not call.has_only("sup", most=1):
        return None
    return f"{ENGLISH_FORMAT.write(call[1])}{ordinal_suffix(int(call[1]))}"


def percentage(call: Call) -> str | None:
    """Return the text of {{percentage|1|3|2}}: 33.33%."""
    part, whole = (plain(call[number]) for number in (1, 2))
    digits = call[3] or "0"
    if (
        part is None
        or whole is None
        or not Decimal(whole)
        or not digits.isdecimal()
        or not call.has_only("pad", "%", most=3)
    ):
        return None
    if call.get("%", "pad"):
        return None
    shown = f"{rounded(Decimal(part) * 100 / Decimal(whole), int(digits)):f}"
    # Trailing zeros are shown only if the template requests them.
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return f"{ENGLISH_FORMAT.write(shown)}%"


def rounded_number(call: Call) -> str | None:
    """Return the text of {{rnd|3.14159|2}}: 3.14."""
    number, digits = plain(call[1]), call[2] or "0"
    if number is None or not re.fullmatch("-?[0-9]{1,2}", digits) or not call.has_only(most=2):
        return None
    return ENGLISH_FORMAT.write(f"{rounded(Decimal(number), int(digits)):f}")


def money(symbol: str, after: str = "") -> Rule:
    """Return the rule for templates such as {{US$|5 million}}, which shows US$5 million."""

    def rule(call: Call) -> str | None:
        if not call.has_only("long", "sp", most=1) or call.get("long", "sp"):
            return None
        return f"{symbol}{call[1]}{after}" if call[1] else symbol

    return rule


def height(call: Call) -> str | None:
    """Return the text of {{height|ft=5|in=11}}: 5 ft 11 in; the conversion to other units is not shown."""
    if not call.has_only("ft", "in", "m", "cm", "precision", "abbr", most=0):
        return None
    parts = [(plain(call.get(unit)), unit) for unit in ("ft", "in", "m", "cm") if call.get(unit)]
    if (
        not parts
        or any(number is None for number, _ in parts)
        or len({unit in "ftin" for _, unit in parts}) > 1
    ):
        return None
    return " ".join(f"{number} {unit}" for number, unit in parts)


def track_gauge(call: Call) -> str | None:
    """Return the text of {{track gauge|1435mm}}: 1,435 mm; the conversion to feet and inches is not shown."""
    match = re.fullmatch(r"([0-9]{3,4}) ?mm", call[1])
    if (
        match is None
        or not call.has_only("lk", "allk", "al", "nowrap", "disp", "first", most=1)
        or call.get("first", "disp")
    ):
        return None
    shown = f"{ENGLISH_FORMAT.write(match[1])} mm"
    return shown


def sort(call: Call) -> str | None:
    """Return the text of {{sort|key|text}}: text."""
    return call[2] or call[1]


def sortname(call: Call) -> str | None:
    """Return the text of {{sortname|First|Last}}: First Last."""
    return f"{call[1]} {call[2]}".strip() if call.words else None


def harvard(before: str, after: str, year: str) -> Rule:
    """Return the rule for {{harvtxt|Boolos|Jeffrey|1974|p=5}}, which shows Boolos & Jeffrey (1974, p. 5)."""

    def rule(call: Call) -> str | None:
        *names, date = call.words or [""]
        if not names or not call.has_only("p", "pp", "loc", "ps", most=6) or not is_known(*call.words):
            return None
        if len(names) > 3:
            shown = f"{names[0]} et al."
        else:
            shown = f"{', '.join(names[:-1])} & {names[-1]}" if len(names) > 1 else names[0]
        place = (
            f", p. {call.get('p')}" if call.get("p") else f", pp. {call.get('pp')}" if call.get("pp") else ""
        )
        place += f", {call.get('loc')}" if call.get("loc") else ""
        return f"{before}{shown} {year.format(date=f'{date}{place}')}{after}{call.get('ps')}"

    return rule


def sic(call: Call) -> str | None:
    """Return the text of {{sic}}: [sic], and of {{sic|words}}: words [sic]."""
    if not call.has_only("hide", "expected", "nolink", "sic", "reason", most=1):
        return None
    if is_yes(call.get("hide")) or call.get("sic") == "no":
        return call[1]
    return f"{call[1]} [sic]" if call[1] else "[sic]"


def quote(call: Call) -> str | None:
    """Return the text of {{quote|text|author|source}}: the text, and below it the author and the source."""
    text = call.get("text", "quote") or call[1]
    if not text:
        return ""
    author = call.get("author", "sign", "by") or call[2]
    source = call.get("source", "title") or call[3]
    signature = ", ".join(part for part in (author, source) if part)
    return f"\n{text}\n{f'— {signature}{chr(10)}' if signature else ''}"


def interlanguage_link(call: Call) -> str | None:
    """Return the text of {{ill|Name|de|lt=Text}}: the text of a link to another Wikipedia."""
    if call.get("lt", "display"):
        return call.get("lt", "display")
    words = call.words
    if not words:
        return None
    if words[0] in NAMES and len(words) > 1:  # before 2017: the language first
        return words[3] if len(words) > 3 else words[2] if len(words) > 2 else words[1]
    return words[0]


def flag(call: Call) -> str | None:
    """Return the text of {{flag|Azores}}: Azores; None for country codes, whose names are not known here."""
    if call.get("name"):
        return call.get("name")
    return call[1] if len(call[1]) > 3 or not call[1].isupper() else None


def native_name(call: Call) -> str | None:
    """Return the text of {{native name|de|München}}: München (German)."""
    name = _language(call[1])
    if not name or not call[2] or not call.has_only("parensize", "paren", most=2):
        return None
    return call[2] if call.get("paren") in ("off", "omit", "no") else f"{call[2]} ({name})"


MUSIC = {
    **dict.fromkeys(("flat", "b", "♭"), "♭"),
    **dict.fromkeys(("sharp", "#", "♯"), "♯"),
    **dict.fromkeys(("natural", "n"), "♮"),
    **dict.fromkeys(("doublesharp", "##", "x"), "𝄪"),
    **dict.fromkeys(("doubleflat", "bb"), "𝄫"),
}


def music(call: Call) -> str | None:
    """Return the text of {{music|flat}}: ♭, and of {{music|time|3|4}}: 3/4."""
    if call[1] in ("time", "timesig", "time signature") and call[2].isdecimal() and call[3].isdecimal():
        return f"{call[2]}/{call[3]}"
    return MUSIC.get(call[1]) if most_one(call) else None


def keys(call: Call) -> str | None:
    """Return the text of {{key press|Ctrl|C}}: Ctrl+C."""
    return "+".join(call.words) if not call.named and is_known(*call.words) else None


def character(call: Call) -> str | None:
    """Return the text of {{unichar|A9|copyright sign}}: U+00A9 © COPYRIGHT SIGN."""
    code = call[1]
    if not re.fullmatch("[0-9A-Fa-f]{2,6}", code) or not call.has_only(
        "html", "cwith", "note", "ulink", most=2
    ):
        return None
    if call.get("html", "cwith", "note") or not 0x20 < int(code, 16) < 0x110000:
        return None
    return f"U+{code.upper():0>4} &#{int(code, 16)};{spaced(call[2].upper())}"


def primes(mark: str) -> Rule:
    """Return the rule for templates such as {{prime|5}}, which shows 5′."""
    return around("", mark)


def root(call: Call) -> str | None:
    """Return the text of {{sqrt|2}}, {{radic|2}}: √2."""
    if not call[1] or not call.has_only(most=1) or not is_known(call[1]):
        return None
    return f"√{call[1]}" if re.fullmatch(r"[\w.'&#;]+", call[1]) else f"√({call[1]})"


def absolute(call: Call) -> str | None:
    """Return the text of {{abs|x}}: |x|."""
    return f"{BAR}{call[1]}{BAR}"


def ten_to(call: Call) -> str | None:
    """Return the text of {{10^|6}}: 10^6."""
    return power_of_ten("")(call)


def inflated(call: Call) -> str | None:
    """Return None for {{inflation|US|5|1929}}, which depends on the day on which the page is read."""
    return None


SHIPS = [
    "USS",
    "HMS",
    "HMAS",
    "HMCS",
    "HMNZS",
    "HMSAS",
    "RMS",
    "MS",
    "MV",
    "SMS",
    "USNS",
    "USCGC",
    "SS",
    "INS",
    "HNLMS",
    "HDMS",
    "ORP",
    "HMT",
    "HMY",
    "RFA",
    "USAT",
    "GTS",
    "MT",
    "PS",
    "TSS",
]
CURRENCIES = {
    "us$": "US$",
    "usd": "US$",
    "a$": "A$",
    "aud": "A$",
    "au$": "A$",
    "c$": "C$",
    "ca$": "C$",
    "cad": "C$",
    "nz$": "NZ$",
    "nzd": "NZ$",
    "hk$": "HK$",
    "hkd": "HK$",
    "s$": "S$",
    "sgd": "S$",
    "nt$": "NT$",
    "r$": "R$",
    "€": "€",
    "euro": "€",
    "eur": "€",
    "£": "£",
    "gbp": "£",
    "gb£": "£",
    "¥": "¥",
    "jpy": "¥",
    "jp¥": "¥",
    "inr": "₹",
    "₹": "₹",
    "cny": "CN¥",
    "cn¥": "CN¥",
    "krw": "₩",
    "₩": "₩",
    "php": "₱",
    "₱": "₱",
    "ph₱": "₱",
    "ils": "₪",
    "nis": "₪",
    "brl": "R$",
}

RULES: dict[str, Rule] = {
    **rules("langx|lang-x", langx),
    **rules([f"lang-{code}" for code in (*NAMES, *OTHER_LANGUAGES)], lang_xx),
    **rules(
        "lang-grc-gre|lang-zh-hans|lang-zh-hant|lang-sr-cyrl|lang-sr-latn|lang-en-us|lang-pt-br|lang-fr-ca",
        lang_xx,
    ),
    **rules("lang-rus", lang_rus),
    **rules("ipa", ipa),
    **rules([f"ipa-{code}" for code in NAMES], ipa_xx),
    **rules(
        "ipa-all|ipa-nah|ipa-tu|ipa-ber|ipa-xx|ipa-sh|ipa-pms|ipa-yue|ipa-cmn|ipa-scn|ipa-nap|ipa-vec", ipa_xx
    ),
    **rules("ipac-en", ipac_en),
    **rules("ipaslink|ipa phoneme", around("/", "/")),
    **rules("ipablink|ipa symbol", around("[", "]")),
    **rules(
        "ipalink|ipa link|script/arabic|script/hebrew|script/copt|script/nastaliq|script/cyrillic",
        last,
    ),
    **rules("angbr|angbr ipa|angle bracket|angle|vr|grapheme", around("⟨", "⟩")),
    **rules("respell|respelling", respell),
    **rules("nihongo", nihongo),
    **rules("nihongo2|nihongo core|nq|nastaliq|rtl-lang|rtl lang", last),
    **rules("zh|lang-zh|zh-full", chinese),
    **rules("native name|native phrase|native name checker", native_name),
    **rules("literal translation|lit|literally", around("lit. '", "'")),
    **rules("gloss|translation", around("'", "'")),
    **rules("audio|audio-ipa|audio-pipe", argument(2)),
    **{prefix.lower(): ship(prefix) for prefix in SHIPS},
    **rules(
        "sclass|sclass2|sclass-", lambda call: f"{call[1]}-class {call[2]}" if len(call.words) == 2 else None
    ),
    **rules("as of|asof", as_of),
    **rules("birth date|bda|birth date and age|birth-date|birth date and age2|dob", date_rule()),
    **rules(
        "start date|start date and age|end date|death date|release date|opening date|start-date and age",
        date_rule(),
    ),
    **rules("film date", lambda call: date_rule()(call) if len(call.words) <= 3 else None),
    **rules(
        "birth-date|death-date|birth-date and age|end-date|start-date",
        lambda call: call[1] if most_one(call) else None,
    ),
    **rules(
        "birth year and age|start year and age",
        lambda call: call[1] if call[1].isdecimal() and most_one(call) else None,
    ),
    **rules("death date and age|dda", death_date_and_age),
    **rules("age|age in years", age),
    **rules("age in days", age_in_days),
    **rules("dts|date|sort date|date table sorting", sortable_date),
    **rules("oldstyledate|oldstyledatedy", old_style_date),
    **rules("circa|c.|ca.|circ", circa),
    **rules("floruit|fl.", span_of("fl.")),
    **rules("reign|r.", span_of("r.")),
    **rules("born|b.", span_of("b.")),
    **rules("died|d.", span_of("d.")),
    **rules("duration", duration),
    **rules("ordinal|ord|nth", ordinal),
    **rules("percentage|percent|pct", percentage),
    **rules("rnd|round", rounded_number),
    **rules("nts|number table sorting|formatnum:|num", english_number),
    **rules("format price|formatprice", lambda call: in_english_format(call) if "." not in call[1] else None),
    **{name: money(symbol) for name, symbol in CURRENCIES.items()},
    **rules("e|×10^", power_of_ten()),
    **rules("10^", ten_to),
    **rules("track gauge|railgauge|rail gauge", track_gauge),
    **rules("height", height),
    **rules("sort|sorttext", sort),
    **rules("sortname", sortname),
    **rules("harvtxt|harvard citation text", harvard("", "", "({date})")),
    **rules("harv|harvard citation", harvard("(", ")", "{date}")),
    **rules("harvnb|harvard citation no brackets|harvcolnb", harvard("", "", "{date}")),
    **rules("sic", sic),
    **rules(
        "quote|blockquote|quotation|bquote|cquote|quote box|rquote|centered pull quote|quote frame", quote
    ),
    **rules("ill|interlanguage link|interlanguage link multi|link-interwiki|illm", interlanguage_link),
    **rules("flag|flagcountry|flagu|flagg|flagright", flag),
    **rules("flag+link", lambda call: None),
    **rules("music", music),
    **rules("key press|keypress|key|button", keys),
    **rules("unichar", character),
    **rules("u+", around("U+")),
    **rules("prime", primes("′")),
    **rules("pprime|double prime|dprime", primes("″")),
    **rules("sqrt|radic|root", root),
    **rules("abs", absolute),
    **rules("ce|chem name", chem2),
    **rules("hlist|flat list|horizontal list|dot list", listed(" · ")),
    **rules("ubl|ublist|unbulleted list|plain list|vunblist", listed("\n", "\n")),
    **rules("bulleted list|blist|bullet list|unordered list|ordered list", listed("\n* ", "\n")),
    **rules("legend|legend2|legend inline|color box", argument(2)),
    **rules("mdashb", constant("—")),
    **rules("ndashb", constant("–")),
    **rules("' \"", constant('&#39; "')),
    **rules("\" '", constant('" &#39;')),
    **rules('-"|"-|"', constant('"')),
    **rules("'-|-'", constant("&#39;")),
    **rules("'s", constant("&#39;s")),
    **rules("(|paren", constant("(")),
    **rules(")", constant(")")),
    **rules("*", constant("*")),
    **rules("number sign", constant("#")),
    **rules("(-", constant("{" + BAR)),
    **rules("half|1/2", constant("1/2")),
    **rules("equals sign", constant(EQUALS)),
    **rules("eqm", constant("")),
    **rules("break", constant(LINE_BREAK)),
    **rules("inflation|to usd|inrconvert|currentyear|age in years and days|time ago|pop density", inflated),
    **rules("arxiv", identifier("arXiv:")),
    **rules("jstor", identifier("JSTOR ")),
    **rules("bibcode", identifier("Bibcode:")),
    **rules("lccn", identifier("LCCN ")),
    **rules("asin", identifier("ASIN ")),
}

UNSEEN = names(MARKS) | names(
    """
r|weasel-inline|weasel inline|pov-inline|pov inline|peacock inline|original research inline
synthesis inline|syn|qualify evidence|relevance inline|importance inline|medcn|medical citation needed
citation needed span|cref|cref2|cnote|inflation-fn|inflation-year|specify|ambiguous|contradict-inline
contradictory inline|not in source|not in citation given|nonspecific|third-party inline
primary source inline|self-published inline|self-published source|promotion inline|tone inline|examples
elucidate|explain|quantify|time needed|year needed|date missing|chronology citation needed|season needed
volume needed|issue needed|isbn missing|author missing|full citation|incomplete short citation
pages needed|page range too broad|page numbers needed|unreliable source|unreliable source inline
unreliable medical source|dead link|rs?|verify credibility|request quotation|need quotation to verify|rq
attribution needed|like whom?|compared to?|undue weight inline|undue inline|needs update|update
out of date|buzzword inline|awkward|huh|fix|fix-span|speculation inline|or inline|copyedit inline
non sequitur|jargon inline|technical inline|discuss|under discussion inline|lopsided inline|expand list
sister|sister project|spoken wikipedia|listen|external media|sfn whitelist|bsn|citation style|en icon
gr icon|fr icon|de icon|ar icon|ru icon|ca icon|es icon|it icon|ja icon|zh icon|pl icon|nl icon|pt icon
sv icon|in lang|link language|subscription required|subscription|registration required|closed access
open access|free access|dot-separated|snf|thin-space|nothing|void|·w|dyktalk|featured list|fa icon|ga icon
#seo|wikidata icon|wikidata property|cmain|main2|main list|main category|broader|broader article|see also2
see also if exists|about2|for2|for multi|other people|other persons|other places|other ships
other hurricanes|other uses2|two other uses|three other uses|redirect3|redirect4|redirect-several
redirect-multi|redirect-distinguish|redirect-synonym|distinguish2|distinguish-otheruses|selfref
self reference|technical reasons|correct title|wrongtitle|lowercase|title language|family name hatnote
chinese name|eastern name order|korean name|japanese name|spanish name|portuguese name|vietnamese name
hungarian name|icelandic name|contains special characters|ipa notice|contains chinese text
contains japanese text|contains korean text|further2|further information|detail|details3|other places3
not to be confused with|confuse|confused|similar names|transclude list|lead too short|lead missing
lead rewrite|technical|advert|autobiography|coi|close paraphrasing|confusing|copy edit|copyedit
expert needed|expand section|expand language|essay-like|fansite|globalize|in popular culture|in-universe
incomplete|more footnotes|more footnotes needed|no footnotes|original research|overly detailed|peacock
plot|pov|prose|recentism|refimprove section|sections|self-published|story|third-party|tone
too few opinions|trivia|unbalanced|unclear|undue weight|unreliable sources|update section|very long|weasel
more citations needed section|unreferenced section|blp sources|blp unsourced|one source|primary sources
page creator needs help|notability|underlinked|overlinked|dead end|empty section|missing information
citations broken|disputed|hoax|rough translation|subscription or libraries|bartable|bar percent|chart
clade|family tree|chart top|chart bottom|graph:chart|css image crop|annotated image|superimpose
location map|location map+|location map~|side box|sidebar|ahnentafel|election box|succession box|s-start
s-end|s-bef|s-ttl|s-aft|s-off|s-new|s-non|s-roy|s-reg|s-hou|s-ref|end box|start box|weather box
climate chart|historical populations|us census population|track listing|tracklist|tracklisting
cast listing|album ratings|certification table top|certification table bottom|fb cl header navbar
football box|footballbox|footballbox collapsible|efs player|fs player|fs start|fs mid|fs end|fs2 player
medal|medalcount|medaltabletop|chess diagram|cladogram|phylogeny|dynamic list|sources
further reading cleanup|findsources|imdb|circular reference|portal-inline|commonscat-inline
commons category-inline|commons-inline|wiktionary-inline|wikisource-inline|wikiquote-inline
commons category inline|library resources box|library resources by|gutenberg author|subject bar|taxonbar
acarticle|featured portal|anchor for redirect|subpages|sisterlinksn|wikisourcelang|wikisource1911enc
eb1911 poster|commonscat left|good topic|skip to toc|skip to top and bottom|shortcut|abbr list|nfs
annual readership|toctabs|calendar|year nav|year in other calendars|decadebox|m1 year in topic
import style|stylesheet|largetables|overly long|very long section|image frame|wide image|panorama
photo montage
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = (
    "automatic taxobox",
    "speciesbox",
    "subspeciesbox",
    "chembox",
    "drugbox",
    "geobox",
    "campaignbox",
    "chart/",
    "us census ",
    "album chart",
    "single chart",
)
UNSEEN_ENDINGS: tuple[str, ...] = (" sidebar", " navbox", " stub", " hatnote", "-inline", " inline", " icon")
