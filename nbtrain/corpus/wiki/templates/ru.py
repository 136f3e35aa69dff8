"""Templates of the Russian Wikipedia, according to their documentation pages (Шаблон:<имя>)."""

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
from nbtrain.corpus.wiki.templates.common import inline_quote, mark, power_of_ten, quoted, spaced
from nbtrain.corpus.wiki.templates.dates import date_of, written
from nbtrain.corpus.wiki.templates.numbers import NumberFormat

FORMAT = NumberFormat(" ", ",", 5)
# Abbreviations of languages before a foreign word: {{lang-en|London}} is англ. London.
LANGUAGES = dict(
    pair.split("=")
    for pair in [
        "en=англ.",
        "de=нем.",
        "fr=фр.",
        "es=исп.",
        "it=итал.",
        "la=лат.",
        "el=греч.",
        "grc=др.-греч.",
        "uk=укр.",
        "be=белор.",
        "pl=польск.",
        "ja=яп.",
        "zh=кит.",
        "ko=кор.",
        "ar=араб.",
        "he=ивр.",
        "tr=тур.",
        "fa=перс.",
        "pt=порт.",
        "nl=нидерл.",
        "sv=швед.",
        "no=норв.",
        "da=дат.",
        "fi=фин.",
        "et=эст.",
        "lv=латыш.",
        "lt=лит.",
        "cs=чеш.",
        "sk=словацк.",
        "hu=венг.",
        "ro=рум.",
        "bg=болг.",
        "sr=серб.",
        "hr=хорв.",
        "sl=словен.",
        "mk=макед.",
        "sq=алб.",
        "ka=груз.",
        "hy=арм.",
        "az=азерб.",
        "kk=казах.",
        "uz=узб.",
        "tt=тат.",
        "ba=башк.",
        "mn=монг.",
        "vi=вьетн.",
        "is=исл.",
        "ga=ирл.",
        "ca=кат.",
        "eu=баск.",
        "eo=эспер.",
        "sa=санскр.",
        "cy=валл.",
        "ky=кирг.",
        "tk=туркм.",
        "tg=тадж.",
    ]
)


def in_language(call: Call) -> str | None:
    """Return the text of a {{lang-XX|...}} template, e.g. "англ. London" for {{lang-en|London}}, or None."""
    short = LANGUAGES.get(call.name.partition("-")[2])
    return f"{short} {call[1]}" if short and call[1] and call.has_only(most=1) else None


def russian(text: str) -> str | None:
    """Return a number of {{число}} as Russian text: digits, with spaces and a decimal point or comma."""
    text = text.replace("−", "-").replace("\u00a0", " ").replace("&nbsp;", " ").strip()
    if not re.fullmatch(r"[+-]?[0-9]+(?: [0-9]{3})*(?:[.,][0-9]+)?", text):
        return None
    return FORMAT.write(text.replace(" ", "").replace(",", "."))


def number(call: Call) -> str | None:
    """Return the text of {{число|1234567|км}}: 1 234 567 км."""
    shown = russian(call[1])
    return (
        None
        if shown is None or not call.has_only(most=2) or not is_known(call[2])
        else f"{shown}{spaced(call[2])}"
    )


def drob(call: Call) -> str | None:
    """Return the text of {{дробь|1|2}}: 1/2, and of {{дробь|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not is_known(*words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


def date(call: Call) -> str | None:
    """Return the text of {{дата|1|5|2000}}: 1 мая 2000."""
    if not call.has_only(most=3) or len(call.words) != 3:
        return None
    found = date_of(call[3], call[2], call[1], "ru")
    return None if found is None else written(found, "ru")


def not_translated(call: Call) -> str | None:
    """Return the text of {{нп5|Название|текст|en|Title}}: the text of a link to another Wikipedia."""
    return call.get("есть", "надо") or call[2] or call[1] or None


def icon(name: str) -> Rule:
    """Return the rule for templates such as {{ref-en}}, which shows (англ.)."""
    return constant(f"({name})")


# Templates that mark doubts after a word.
MARKS = """
нет аи|нет аи 2|источник?|что?|кто?|когда?|где?|какой?|какие?|чей?|сколько?|почему?|как?|уточнить
уточнить ссылку|неавторитетный источник|неавторитетный источник?|проверить|сомнительно|нет в источнике
обновить|устарело|значимость?|значимость факта|по мнению
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **rules([f"lang-{code}" for code in LANGUAGES], in_language),
    **rules([f"lang-{code}2" for code in LANGUAGES], argument(1)),
    **rules("langi|lang", lambda call: call[2] or None),
    **{f"ref-{code}": icon(name) for code, name in LANGUAGES.items()},
    **{f"{code} icon": icon(name) for code, name in LANGUAGES.items()},
    **rules("число|num", number),
    **rules("дробь|frac", drob),
    **rules("дата", date),
    **rules("e", power_of_ten("·")),
    **rules("s|nobr|nowrap|неразрыв|мелко|малыми|abbr|comment|комментарий|tooltip|color text", argument(1)),
    **rules("нп", not_translated),
    **rules(
        "не переведено|не переведено 2|не переведено 3|не переведено 4|не переведено 5|нп1|нп2|нп3|нп4|нп5",
        not_translated,
    ),
    **rules("цитата|начало цитаты inline", inline_quote),
    **rules("цитата-инлайн|«", quoted("«", "»")),
    **rules("мфа|ipa", around("[", "]")),
    **rules("тире|—", constant(" — ")),
    **rules("рубль|₽|руб", lambda call: "₽" if not call.words else None),
    **rules("-1|+1", last),
    **rules("sic|так в источнике", constant("[sic]")),
    **rules("val", lambda call: None),
    **rules("юлианский|oldstyledate|сс|с|д|год|века|век", lambda call: None),
}
UNSEEN = names(
    """
проверено|sfn0|r|ref+|примечания|комментарии|клр|очистить|якорь|основная статья|главная статья|см. также
смотри также|другие значения|перенаправление|значения|неоднозначность|disambig|заготовка|стаб
изолированная статья|нет источников|нет сносок|нет ссылок|переписать|стиль|дописать|плохой перевод
пустой раздел|карточка|навигация|портал|портал-раздел|родственный проект|родственные проекты
внешние ссылки|библиоинформация|нормативный контроль|викисклад|избранная статья|хорошая статья
добротная статья|флаг|флаг россии|конец кол|конец столбцов|столбцы|конец цитаты|шаблон карточка
координаты в заголовке|орфография|спам|реклама|нейтральность|галерея|кратное изображение
заголовок курсивом|вп-порталы|спискокомментариев|переход
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = (
    "карточка ",
    "навигационная",
    "портал:",
    "заготовка",
    "избранный список",
)
UNSEEN_ENDINGS: tuple[str, ...] = ("-stub",)
