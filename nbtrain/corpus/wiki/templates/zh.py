"""Templates of the Chinese Wikipedia, according to their documentation pages (Template:<名称>/doc)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

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
from nbtrain.corpus.wiki.templates.common import inline_quote, labels, mark, power_of_ten
from nbtrain.corpus.wiki.templates.dates import date_of, date_rule, written, years_between


def life(call: Call) -> str | None:
    """Return the text of {{bd|1900年|1月1日|1980年|2月2日}}: （1900年1月1日－1980年2月2日）."""
    if not call.has_only("catidx", "catIdx", "key", "sort", most=5) or not is_known(*call.words):
        return None
    year, day, last_year, last_day = [*call.words, "", "", "", ""][:4]
    if not re.fullmatch("[0-9]{1,4}年", year) or not re.fullmatch("[0-9]{1,4}年|", last_year):
        return None
    if not last_year:
        return f"（{year}{day}－）" if not last_day else None
    return f"（{year}{day}－{last_year}{last_day}）"


def red_link(call: Call) -> str | None:
    """Return the text of {{link-en|名称|Title|显示}}: the text of a link to another Wikipedia."""
    return call.get("d", "label") or call[3] or call[1] or None


def translated_link(call: Call) -> str | None:
    """Return the text of {{tsl|en|Title|名称|显示}}: the text of a link to another Wikipedia."""
    return call[4] or call[3] or call[2] or None


def ill(call: Call) -> str | None:
    """Return the text of {{ill|名称|en|Title|lt=显示}}: the text of a link to another Wikipedia."""
    return call.get("lt", "d") or call[1] or None


def ruby(call: Call) -> str | None:
    """Return the text of {{ruby|漢|han}}: 漢(han); the reading is shown above the word."""
    return f"{call[1]}({call[2]})" if len(call.words) == 2 and is_known(*call.words) else None


def death(call: Call) -> str | None:
    """Return the text of {{death date and age|2000|5|1|1950|1|1}}: 2000年5月1日（50歲）."""
    end, born = date_of(call[1], call[2], call[3]), date_of(call[4], call[5], call[6])
    age = years_between(born, end) if born and end and call.has_only("df", most=6) else None
    return None if age is None or end is None else f"{written(end, 'zh')}（{age}歲）"


def nihongo(call: Call) -> str | None:
    """Return None for {{nihongo|...}}, because its text in the Chinese Wikipedia is not known here."""
    return None


def money(symbol: str) -> Rule:
    """Return the rule for templates such as {{NT$|5萬}}, which shows NT$5萬."""
    return lambda call: f"{symbol}{call[1]}" if call[1] and call.has_only(most=1) else None


# Templates that mark doubts after a word.
MARKS = """
fact|cn|來源請求|来源请求|请求来源|請求來源|who|when|where|which|why|vague|clarify|原創研究內聯
failed verification|dubious|pn|page needed|not in source
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **labels("zh", "{name}：{word}"),
    **rules("bd", life),
    **rules(
        "link-en|link-ja|link-de|link-fr|link-es|link-ru|link-ko|link-it|le|lj|internal link helper", red_link
    ),
    **rules("tsl", translated_link),
    **rules("ill|translink|illm", ill),
    **rules("ruby|注音", ruby),
    **rules(
        "start date|end date|birth date|birth date and age|birth-date and age|start date and age", date_rule()
    ),
    **rules("death date and age", death),
    **rules("e", power_of_ten()),
    **rules("us$|usd", money("US$")),
    **rules("nt$|twd", money("NT$")),
    **rules("hk$|hkd", money("HK$")),
    **rules("僻字|黑体|粗体|小字|smaller|nowrap|不換行|subst字|造字|lang-zh-hans|lang-zh-hant", argument(1)),
    **rules("color|顏色|fontcolor", last),
    **rules("ipa", around("[", "]")),
    **rules("cquote|quote|quotation|引文", inline_quote),
    **rules("sic", constant("[sic]")),
    **rules("nihongo", nihongo),
    **rules("co2", constant("CO2")),
}
UNSEEN = names(
    """
noteta|notefoot|noteta-lite|noteta multi|cnspan|r|參考文獻|消歧义|消歧義|disambig|小作品|copyedit|expand
expand language|pov|blp|primarysources|original research|update|advert|tone|wikify|notability
rough translation|translating|fansite|trivia|in-universe|unencyclopedic|weasel|portalbox|sister
lead too short|noteta2|地區用詞|地区用词|簡繁轉換|turn-table
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("noteta", "infobox ", "cgroup")
UNSEEN_ENDINGS: tuple[str, ...] = ("-stub", "小作品")
