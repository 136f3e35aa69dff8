"""Parses dates in the forms that templates accept, and writes them as the largest Wikipedias do."""

# ruff: noqa: SIM905 (word lists read best as words; letters that look alike are meant)

import datetime
import re
from calendar import monthrange

from nbtrain.corpus.wiki.templates.call import Call, Rule

# Names of months as MediaWiki writes them after a day (in the genitive, if the language has one).
MONTHS: dict[str, list[str]] = {
    language: months
    for language, *months in map(
        str.split,
        """
en January February March April May June July August September October November December
de Januar Februar März April Mai Juni Juli August September Oktober November Dezember
fr janvier février mars avril mai juin juillet août septembre octobre novembre décembre
sv januari februari mars april maj juni juli augusti september oktober november december
nl januari februari maart april mei juni juli augustus september oktober november december
es enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
ru января февраля марта апреля мая июня июля августа сентября октября ноября декабря
it gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre
pl stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
ceb Enero Pebrero Marso Abril Mayo Hunyo Hulyo Agosto Septiyembre Oktubre Nobyembre Disyembre
ja 1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月
zh 1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月
""".strip().split("\n"),
    )
}
# Names of months without a day, for languages in which they differ.
NOMINATIVES: dict[str, list[str]] = {
    language: months
    for language, *months in map(
        str.split,
        """
ru январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь
pl styczeń luty marzec kwiecień maj czerwiec lipiec sierpień wrzesień październik listopad grudzień
ceb Enero Pebrero Marso Abril Mayo Hunyo Hulyo Agosto Septiyembre Oktubre Nobiyembre Disyembre
""".strip().split("\n"),
    )
}
ENGLISH_MONTHS = {name.lower(): number for number, name in enumerate(MONTHS["en"], 1)}
ENGLISH_MONTHS |= {name[:3]: number for name, number in ENGLISH_MONTHS.items()} | {"sept": 9}
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DAY_FORMATS = {"de": "{day}. {month} {year}", "es": "{day} de {month} de {year}"}
MONTH_FORMATS = {"es": "{month} de {year}"}

Date = tuple[int, int | None, int | None]
"""A date as (year, month, day); without a day, or only with a year, the missing values are None."""

ISO_DATE = re.compile(r"(-?[0-9]{1,4})-([0-9]{1,2})(?:-([0-9]{1,2}))?")
DAY_FIRST = re.compile(r"([0-9]{1,2})\.?\s+([^\W\d_]{3,12})\.?,?\s+([0-9]{3,4})")
MONTH_FIRST = re.compile(r"([^\W\d_]{3,12})\.?\s+([0-9]{1,2}),?\s+([0-9]{3,4})")


def month_number(text: str, language: str = "en") -> int | None:
    """Return a month's number from a number or a name in `language` or English; None if it is unknown."""
    text = text.strip().lower()
    if text.isdecimal():
        return int(text) if 1 <= int(text) <= 12 else None
    for names in (MONTHS.get(language, []), NOMINATIVES.get(language, [])):
        for number, name in enumerate(names, 1):
            if text == name.lower():
                return number
    return ENGLISH_MONTHS.get(text)


def date_of(year: str, month: str = "", day: str = "", language: str = "en") -> Date | None:
    """Return the date in three parameters, the last of which may be empty; None if they are not a date."""
    year = year.strip()
    if not year.isdecimal() or not 1 <= len(year) <= 4 or int(year) == 0:
        return None
    if not month.strip():
        return None if day.strip() else (int(year), None, None)
    number = month_number(month, language)
    if number is None:
        return None
    day = day.strip()
    if not day:
        return int(year), number, None
    if not day.isdecimal() or not 1 <= int(day) <= monthrange(int(year), number)[1]:
        return None
    return int(year), number, int(day)


def parsed_date(text: str, language: str = "en") -> Date | None:
    """Parse a date such as 2000-05-01, 1 May 2000 or May 1, 2000; return None if it is not a date."""
    text = text.strip()
    if match := ISO_DATE.fullmatch(text):
        return date_of(match[1], match[2], match[3] or "")
    if match := DAY_FIRST.fullmatch(text):
        return date_of(match[3], match[2], match[1], language)
    if match := MONTH_FIRST.fullmatch(text):
        return date_of(match[3], match[1], match[2], language)
    return date_of(text) if re.fullmatch("[0-9]{3,4}", text) else None


def written(date: Date, language: str, is_day_first: bool = True) -> str | None:
    """Return a date in the format of a language's Wikipedia; None if the language is unknown."""
    year, month, day = date
    if month is None:
        return f"{year}年" if language in ("ja", "zh") else str(year)
    if language not in MONTHS:
        return None
    name = MONTHS[language][month - 1]
    if language in ("ja", "zh"):
        return f"{year}年{name}" if day is None else f"{year}年{name}{day}日"
    if day is None:
        name = NOMINATIVES.get(language, MONTHS[language])[month - 1]
        return MONTH_FORMATS.get(language, "{month} {year}").format(month=name, year=year)
    if language in ("en", "ceb") and not is_day_first:
        return f"{name} {day}, {year}"
    shown = f"{day}{'er' if language == 'fr' and day == 1 else ''}"
    if language == "it" and day == 1:
        shown = "1º"
    return DAY_FORMATS.get(language, "{day} {month} {year}").format(day=shown, month=name, year=year)


def years_between(born: Date, end: Date) -> int | None:
    """Return the full years between two dates; None if a day is missing or the second date is earlier."""
    if None in born or None in end or born > end:
        return None
    return end[0] - born[0] - ((end[1], end[2]) < (born[1], born[2]))  # type: ignore[operator]


def ordinal_day(date: Date) -> int | None:
    """Return the number of days since the year 1; None if the date has no day."""
    year, month, day = date
    return None if month is None or day is None else datetime.date(year, month, day).toordinal()


def is_day_first(call: Call) -> bool:
    """Return whether df=y requests the order 1 May 2000 instead of May 1, 2000, the default in English."""
    return call.get("df").lower() in ("y", "yes", "1", "true", "dmy")


def date_rule(first: int = 1) -> Rule:
    """Return a rule that shows the date in three arguments: the year in number `first`, then month and day.

    The age that {{birth date and age}} also shows is omitted, because it depends on the day of reading.
    """

    def rule(call: Call) -> str | None:
        if not call.has_only("df", "mf", "p", "paren", "day", "month", "year", "br"):
            return None
        words = [*call.words[first - 1 :], "", "", ""]
        date = date_of(words[0], words[1], words[2], call.wiki.language)
        if date is None or any(words[3:6]):
            return None
        return written(
            date, call.wiki.language, is_day_first(call) or call.wiki.language not in ("en", "ceb")
        )

    return rule
