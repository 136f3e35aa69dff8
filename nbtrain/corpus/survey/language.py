"""Detects the language of a text from its script and most common words, well enough to describe the text.

Most languages are recognized by their script. Languages written in Latin, Cyrillic, Arabic or Devanagari
letters are recognized by words that occur in nearly every sentence. For a language that is not in the table,
the name of its script is reported.
"""

# ruff: noqa: RUF001  (words of other scripts)

import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from nbtrain.corpus import characters

LOOKED_AT_CHARS = 200_000
# Minimum share of the letters that must be in the most frequent script.
LEAST_SHARE = 0.5
# Minimum share of a text's words that must be in a language's list, and its minimum ratio to the share of the
# second-best language.
LEAST_WORDS, LEAST_LEAD = 0.1, 1.25

# {first word of a letter's Unicode name: language or script}
SCRIPTS = {
    "CJK": "Chinese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
    "LATIN": "Latin script",
    "CYRILLIC": "Cyrillic script",
    "ARABIC": "Arabic script",
    "GREEK": "Greek",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari script",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "TELUGU": "Telugu",
    "THAI": "Thai",
    "GEORGIAN": "Georgian",
    "ARMENIAN": "Armenian",
    "KHMER": "Khmer",
    "MYANMAR": "Burmese",
    "LAO": "Lao",
    "ETHIOPIC": "Ethiopic script",
    "CANADIAN": "Canadian syllabics",
}
# Minimum share of Kana among the letters for Japanese, which also uses Han characters.
KANA_SHARE = 0.05
WORDS = {
    "Latin script": {
        "English": "the of and to in that was with for is not his as be you have this are",
        "German": "der die und das den von zu mit sich nicht ist ein auf dem",
        "French": "de la le et les des en un une du que dans est pour",
        "Spanish": "de la que el en los del las por con una se su al",
        "Portuguese": "de que o a do da os um para com uma em no não",
        "Italian": "di che il la per un non una del della con gli nel sono",
        "Dutch": "de het een van en in dat niet zijn op met voor die te",
        "Polish": "się nie na jest że to do ze jak od przez tak po był",
        "Turkish": "bir ve bu için da de ile çok ne gibi olarak daha o kadar",
        "Vietnamese": "của và là các có một được không cho trong người này đã với",
        "Indonesian": "yang dan di itu dengan untuk tidak dari dalam akan pada ini juga ke",
        "Swedish": "och att det som en på är av för med den till inte han",
        "Czech": "se na je že to jako byl ale za jsem by aby když nebo",
        "Romanian": "și de în la cu pe nu mai din ce care să o a",
        "Hungarian": "a az és hogy nem is egy volt mint csak meg de ha ez",
        "Finnish": "ja on ei se hän oli että kun niin mutta joka olla myös",
    },
    "Cyrillic script": {
        "Russian": "и в не на что он как это его но из она был по",
        "Ukrainian": "і в не на що він як це його але з вона був та",
        "Bulgarian": "и на да не се от за това е си като но му те",
    },
    "Arabic script": {
        "Arabic": "في من على أن إلى عن ما هذا لا التي كان مع هو ذلك",
        "Persian": "و در به از که این را با است آن یک برای تا خود",
        "Urdu": "کے کی میں ہے اور سے کا کو اس نے پر کہ ہیں تھا",
    },
    "Devanagari script": {
        "Hindi": "के की में है और से का को यह ने पर कि हैं था",
        "Marathi": "आणि आहे या ते तो की हे मी होते नाही होता पण त्या हा",
    },
}
_WORDS = {
    # Words of one Latin letter occur in too many languages.
    script: {
        language: frozenset(word for word in words.split() if len(word) > 1 or script != "Latin script")
        for language, words in languages.items()
    }
    for script, languages in WORDS.items()
}


def language_of(texts: Iterable[str]) -> str:
    """Return the main language of some texts, or its script if the language is not recognized.

    Returns "" if the texts have no letters, or if no script has most of the letters.
    """
    text = unicodedata.normalize("NFC", " ".join(islice(texts, 1000))[:LOOKED_AT_CHARS])
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    total = sum(scripts.values())
    if not total:
        return ""
    if scripts["Japanese"] >= KANA_SHARE * total and scripts["Japanese"] + scripts["Chinese"] >= total / 2:
        return "Japanese"
    script, count = scripts.most_common(1)[0]
    if count < LEAST_SHARE * total:
        return ""
    if script not in _WORDS:
        return script
    words = [word.lower() for word in characters.words(text)]
    shares = {
        language: sum(1 for word in words if word in common) / max(1, len(words))
        for language, common in _WORDS[script].items()
    }
    best, second = sorted(shares, key=lambda language: shares[language], reverse=True)[:2]
    is_clear = shares[best] >= max(LEAST_WORDS, LEAST_LEAD * shares[second])
    return best if is_clear else script


def _script(letter: str) -> str:
    first = unicodedata.name(letter, "").partition(" ")[0]
    return SCRIPTS.get(first, first.capitalize() or "unknown script")
