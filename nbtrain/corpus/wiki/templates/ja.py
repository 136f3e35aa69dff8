"""Templates of the Japanese Wikipedia, according to their documentation pages (Template:<名前>/doc)."""

# ruff: noqa: RUF001 (letters that look alike are meant)

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
from nbtrain.corpus.wiki.templates.common import inline_quote, labels, mark, power_of_ten
from nbtrain.corpus.wiki.templates.dates import date_of, date_rule, written, years_between

# The first day of each era as (year, month, day), with the name of the era.
ERAS = (
    ((2019, 5, 1), "令和"),
    ((1989, 1, 8), "平成"),
    ((1926, 12, 25), "昭和"),
    ((1912, 7, 30), "大正"),
    ((1868, 1, 25), "明治"),
)


def ruby(call: Call) -> str | None:
    """Return the text of {{ruby|漢字|かんじ}}: 漢字(かんじ); the reading is shown above the word."""
    return f"{call[1]}({call[2]})" if len(call.words) == 2 and is_known(*call.words) else None


def reading(call: Call) -> str | None:
    """Return the text of {{読み仮名|漢字|かんじ}}: 漢字（かんじ）."""
    word, kana, more = [*call.words, "", "", ""][:3]
    if not word or not kana or not call.has_only("追加", "post", most=3):
        return None
    return f"{word}（{kana}{f'、{more}' if more else ''}）"


def wareki(call: Call) -> str | None:
    """Return the text of {{和暦|1950}}: 1950年（昭和25年）; None for a year in which an era begins."""
    if not call[1].isdecimal() or len(call.words) != 1 or call.named:
        return None
    year = int(call[1])
    for (first, _, _), name in ERAS:
        if year > first:
            return f"{year}年（{name}{year - first + 1}年）" if year <= 2026 else None
        if year == first:
            return None
    return None


def death(call: Call) -> str | None:
    """Return the text of {{死亡年月日と没年齢|1950|1|1|2000|5|1}}: 2000年5月1日（50歳没）.

    The arguments are the date of birth, then the date of death.
    """
    if not call.has_only(most=6):
        return None
    born, end = date_of(call[1], call[2], call[3]), date_of(call[4], call[5], call[6])
    age = years_between(born, end) if born and end else None
    return None if age is None or end is None else f"{written(end, 'ja')}（{age}歳没）"


def red_link(call: Call) -> str | None:
    """Return the text of {{仮リンク|名前|en|Title|label=表示}}: the text of a link to another Wikipedia."""
    return call.get("label", "redirect") or call[1] or None


def bunsu(call: Call) -> str | None:
    """Return the text of {{分数|1|2}}: 1/2, and of {{分数|3|1|2}}: 3 1/2."""
    words = call.words
    if len(words) not in (2, 3) or not all(word.isdecimal() for word in words) or call.named:
        return None
    return fraction(words[0], words[1], words[2]) if len(words) == 3 else fraction("", words[0], words[1])


# Templates that mark doubts after a word.
MARKS = """
要出典|要検証|要説明|要ページ番号|要追記|誰|誰2|いつ|どこ|どれ|なぜ|要文献特定詳細情報|要非一次資料
信頼性要検証|要高次出典|独自研究？|疑問点|出典無効|言葉を濁さない
"""
RULES: dict[str, Rule] = {
    **rules(MARKS, mark),
    **labels("ja", "{name}: {word}"),
    **rules("ruby|ルビ|ふりがな", ruby),
    **rules("読み仮名|読み仮名 ruby不使用|よみがな", reading),
    **rules("和暦", wareki),
    **rules(
        "生年月日と年齢|生年月日|没年月日|開始日|終了日|start date|end date|birth date|birth date and age",
        date_rule(),
    ),
    **rules("死亡年月日と没年齢", death),
    **rules("仮リンク|ill2|interlang", red_link),
    **rules("分数", bunsu),
    **rules("e", power_of_ten()),
    **rules(
        "要出典範囲|要検証範囲|要説明範囲|疑問点範囲|独自研究範囲|要追加記述範囲|いつ範囲|誰範囲|要ページ番号範囲",
        argument(1),
    ),
    **rules(
        "補助漢字フォント|jis2004フォント|jis90フォント|cp932フォント|環境依存文字|unicodeフォント|拡張漢字|外字",
        argument(1),
    ),
    **rules(
        "補助漢字|jis2004|unicode|縦書き|読み|旧字体|繁体字|簡体字|縮小|smaller|nowrap|改行禁止|inline block",
        argument(1),
    ),
    **rules("color|文字色|下線|太字", last),
    **rules("上付き", lambda call: None),
    **rules("ipa", around("[", "]")),
    **rules("quotation|quote|引用|cquote", inline_quote),
    **rules("sic|ママ|原文ママ", constant("（ママ）")),
    **rules("by|by2", lambda call: call[1] if call[1] and call.has_only(most=1) else None),
    **rules("co2", constant("CO2")),
    **rules("math", lambda call: call[1] or None),
}
UNSEEN = names(
    """
独自研究|要校閲|要出典明記|出典の明記|脚注の不足|雑多な内容の箇条書き|出典不足|存命人物の出典明記|r
refnest|efn2|notelist2|脚注ヘルプ|脚注|main2|otheruseslist|otheruses2|redirectlist|混同|参照方法|aimai
人名の曖昧さ回避|地名の曖昧さ回避|曖昧さ回避|デフォルトソート|表示タイトル|画像提供依頼|スタブ|wikify
ページ番号|特殊文字|記事名の制約|暫定記事名|半保護|良質な記事|秀逸な記事|normdaten|commons&cat
ウィキポータルリンク|ウィキプロジェクトリンク|脚注リスト|節stub|観点|中立的な観点|宣伝|正確性|大言壮語
内容過剰|長大な記事|複数の問題|分割提案|統合文字|告知|更新
"""
)
UNSEEN_BEGINNINGS: tuple[str, ...] = ("基礎情報", "テンプレート:", "infobox ")
UNSEEN_ENDINGS: tuple[str, ...] = ("-stub", "スタブ")
