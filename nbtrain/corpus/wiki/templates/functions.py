"""Evaluates parser functions and magic words: {{#if:...}}, {{formatnum:...}}, {{PAGENAME}}.

Sources: Help:Magic words and Help:Extension:ParserFunctions on mediawiki.org. Values that depend on the day
on which a page is read, or on the state of the wiki ({{CURRENTYEAR}}, {{NUMBEROFARTICLES}}), are unknown.
"""

# ruff: noqa: SIM905 (word lists read best as words; letters that look alike are meant)

import math
import operator
import re
from collections.abc import Callable

from nbtrain.corpus.wiki.markup import BAR, GAP, LESS_THAN
from nbtrain.corpus.wiki.templates import dates
from nbtrain.corpus.wiki.templates.call import SEPARATOR, Wiki, is_known
from nbtrain.corpus.wiki.templates.numbers import MINUS_SIGNS, plain

# Names of parser functions in the languages of the largest Wikipedias.
ALIASES: dict[str, str] = {
    alias.replace("_", " "): name
    for name, *aliases in map(
        str.split,
        """
formatnum zahlenformat formatnombre formateranum formateratal formatteernum numformatteren formatonúmero
formatnum formatonumero форматировать_число 数整形 格式化数字
lc klein minus lb kl minús маленькими_буквами małe 小文字 小写
uc gross majus capit sb hl mayus mayús большими_буквами wielkie duże 大文字 大写
lcfirst initial_klein initminus lbförst kleerste primerominus primerominús первая_буква_маленькая zmałej
lcfirst odmałej
lcfirst 先頭小文字 小写首字
ucfirst initial_gross initmajus initcapit sbförst gleerste hleerste primeromayus primeromayús
ucfirst первая_буква_большая zwielkiej zdużej odwielkiej oddużej 先頭大文字 大写首字
plural pluriel meervoud множественное_число plurale mnoga 複数 复数
padleft füllenlinks bourragegauche bourregauche linksopvullen rellenarizquierda rellenarizq заполнить_слева
padleft dolewej 補充左 左填充
#if #si #om #als #если #se #もし #非空式 #若 #如果
#ifeq #si= #omlika #alsgelijk #siigual #seeq #もし等しい #相同式 #匹配式 #若相等 #如果相等
#expr #utr #expressie #espr #式 #计算式 #表达式 #表達式
#ifexpr #siexpr #omutr #alsexpressie #seespr #もし式 #若表达式 #若表達式
#switch #wechsle #selon #växel #schakelen #según #переключатель #切り替え #多选式 #多条件式 #双射式 #开关
#switch #转换
#switch #轉換
#time #heure #tid #tijd #tiempo #время #tempo #時間 #时间
#tag #erweiterung #balise #tagg #label #etiqueta #метка #тег #тэг #etichetta #タグ #标记
#dateformat #formatdate #datumsformat #formateradatum #datumformat #datumopmaak #formatodefecha
#dateformat #formatearfecha #форматдаты #formatodata #日付整形 #格式化日期 #日期格式化
defaultsort defaultsortkey defaultcategorysort sortierung clefdetri cledetri standardsortering ordenar
defaultsort standaardsortering clavedeordenpredeterminado ordendecategoriapredeterminado sortuj
defaultsort ordendecategoríapredeterminado сортировка_по_умолчанию ключ_сортировки domyślniesortuj
defaultsort デフォルトソート デフォルトソートキー デフォルトカテゴリソート 默认排序 默认排序关键字
defaultsort 默认分类排序
displaytitle seitentitel affichertitre visatitel weergegeventitel toontitel mostrartítulo mostrartitulo
displaytitle показать_заголовок mostratitolo wyświetlanytytuł 表示タイトル 显示标题 顯示標題
""".strip().split("\n"),
    )
    for alias in aliases
}
PAGE_NAMES = frozenset(
    """
PAGENAME FULLPAGENAME BASEPAGENAME SUBPAGENAME ROOTPAGENAME ARTICLEPAGENAME SUBJECTPAGENAME SEITENNAME
VOLLER_SEITENNAME NOMPAGE NOMPAGECOMPLET SIDNAMN HELASIDNAMNET PAGINANAAM VOLLEDIGEPAGINANAAM NOMBREDEPAGINA
NOMBREDEPÁGINA НАЗВАНИЕ_СТРАНИЦЫ TITOLOPAGINA NAZWASTRONY ページ名 页名 页面名 页面名称 頁面名稱
""".split()
)
SITE_NAMES = frozenset(
    """
SITENAME PROJEKTNAME NOMSITE SAJTNAMN SITENAMN SITENAAM NOMBREDELSITIO НАЗВАНИЕ_САЙТА NOMESITO PROJEKT
サイト名
""".split()
)
UNSEEN_FUNCTIONS = frozenset("defaultsort displaytitle #coordinates #seo".split())

Function = Callable[[list[str], Wiki], str | None]


def evaluated(name: str, rest: str, wiki: Wiki) -> str | None:
    """Return the text of {{name:rest}}; None if it is unknown.

    Raises KeyError if `name` is not a parser function.
    """
    name = ALIASES.get(name, name)
    if name in UNSEEN_FUNCTIONS:
        return ""
    return FUNCTIONS[name]([argument.strip() for argument in SEPARATOR.split(rest)], wiki)


def magic_word(name: str, wiki: Wiki) -> str | None:
    """Return the text of {{NAME}}; None if NAME is not a magic word or its value is unknown."""
    if name in PAGE_NAMES:
        return wiki.title or None
    return wiki.site_name if name in SITE_NAMES else None


def _formatnum(arguments: list[str], wiki: Wiki) -> str | None:
    number, option = arguments[0], (arguments[1:] or [""])[0].upper()
    numbers = wiki.numbers
    if numbers is None or not is_known(number):
        return None
    if option in ("R", "RAW"):
        return numbers.read(number)
    if option and option not in ("NOSEP",):
        return None
    bare = number.translate(MINUS_SIGNS)
    if not re.fullmatch(r"[+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+", bare):
        return None
    if option:
        return bare
    return numbers.write(bare)


def _plural(arguments: list[str], wiki: Wiki) -> str | None:
    count = wiki.numbers.read(arguments[0]) if wiki.numbers else None
    count = plain(arguments[0]) if count is None else count
    forms = arguments[1:]
    if count is None or not forms or not is_known(*forms):
        return None
    words = []
    for form in forms:
        number, equals, value = form.partition("=")
        if equals and number.strip().isdecimal():
            if int(number) == float(count):
                return value.strip()
        else:
            words.append(form)
    category = _plural_category(count, wiki.language)
    return None if category is None or not words else words[min(category, len(words) - 1)]


def _plural_category(number: str, language: str) -> int | None:
    """Return the index of a number's plural form in CLDR's order: one, few, many, other."""
    value = abs(float(number))
    if language in ("en", "de", "nl", "sv", "it", "ja", "zh"):
        return 0 if value == 1 and "." not in number else 1
    if language == "es":
        return 0 if value == 1 else 1
    if language == "fr":
        return 0 if value < 2 else 1
    if language not in ("ru", "pl") or "." in number:
        return None
    whole = int(value)
    if whole == 1 or (language == "ru" and whole % 10 == 1 and whole % 100 != 11):
        return 0
    return 1 if 2 <= whole % 10 <= 4 and not 12 <= whole % 100 <= 14 else 2


def _if(arguments: list[str], wiki: Wiki) -> str | None:
    if not is_known(arguments[0]):
        return None
    chosen = arguments[1:3] if arguments[0] else arguments[2:3]
    return chosen[0] if chosen else ""


def _ifeq(arguments: list[str], wiki: Wiki) -> str | None:
    left, right, same, other = [*arguments, "", "", "", ""][:4]
    if not is_known(left, right):
        return None
    try:
        is_same = float(left) == float(right)
    except ValueError:
        is_same = left == right
    return same if is_same else other


def _ifexpr(arguments: list[str], wiki: Wiki) -> str | None:
    value = 0.0 if not arguments[0] else calculated(arguments[0])
    if value is None:
        return None
    true, false = [*arguments[1:], "", ""][:2]
    return true if value else false


def _iferror(arguments: list[str], wiki: Wiki) -> str | None:
    if not is_known(arguments[0]):
        return None
    return arguments[2] if len(arguments) > 2 else arguments[0]


def _switch(arguments: list[str], wiki: Wiki) -> str | None:
    value, default = arguments[0], ""
    if not is_known(value):
        return None
    matched = False
    for index, argument in enumerate(arguments[1:], 2):
        key, equals, result = argument.partition("=")
        key = key.strip()
        if not is_known(key):
            return None
        if not equals:
            if index == len(arguments):  # the last argument without = is the default
                return argument
            matched = matched or _equal(key, value) or False
            if key == "#default":
                matched = matched or False
        elif matched or _equal(key, value):
            return result.strip()
        elif key == "#default":
            default = result.strip()
    return default


def _equal(left: str, right: str) -> bool:
    try:
        return float(left) == float(right)
    except ValueError:
        return left == right


def _expr(arguments: list[str], wiki: Wiki) -> str | None:
    value = calculated(arguments[0]) if arguments[0] else None
    # MediaWiki writes some zeros as -0.
    return None if value is None or (value == 0 and math.copysign(1, value) < 0) else php_number(value)


def _tag(arguments: list[str], wiki: Wiki) -> str | None:
    return (
        ""
        if arguments[0].lower() in ("ref", "references", "templatestyles", "indicator", "gallery")
        else None
    )


def _pad(is_left: bool) -> Function:
    def function(arguments: list[str], wiki: Wiki) -> str | None:
        text, length, filling = [*arguments, "", "0"][:3] if len(arguments) < 3 else arguments[:3]
        if not length.isdecimal() or int(length) > 500 or not is_known(text) or not filling:
            return None if length else text
        missing = int(length) - len(text)
        padding = (filling * max(0, missing))[: max(0, missing)]
        return f"{padding}{text}" if is_left else f"{text}{padding}"

    return function


def _changed(change: Callable[[str], str]) -> Function:
    # A marker, or an entity, has no case.
    return lambda arguments, wiki: change(arguments[0]) if "&" not in arguments[0] else None


def _time(arguments: list[str], wiki: Wiki) -> str | None:
    form, text = [*arguments, ""][:2]
    if any(arguments[2:3]) and arguments[2] != wiki.language:
        return None
    date = dates.parsed_date(text)
    if date is None or date[2] is None or date[1] is None:
        return None
    year, month, day = date[0], date[1], date[2]
    weekday = (dates.ordinal_day(date) or 0) % 7
    genitives = dates.MONTHS.get(wiki.language)
    nominatives = dates.NOMINATIVES.get(wiki.language, genitives)
    values: dict[str, str | None] = {
        "d": f"{day:02}",
        "j": str(day),
        "m": f"{month:02}",
        "n": str(month),
        "Y": str(year),
        "y": f"{year % 100:02}",
        "L": str(int(dates.monthrange(year, 2)[1] == 29)),
        "t": str(dates.monthrange(year, month)[1]),
        "xg": genitives[month - 1] if genitives else None,
        "F": nominatives[month - 1] if nominatives else None,
        "l": dates.WEEKDAYS[weekday - 1] if wiki.language == "en" else None,
    }
    shown = []
    for match in re.finditer(r'"([^"]*)"|\\(.)|(xg|[A-Za-z])|(.)', form, re.DOTALL):
        quoted, escaped, code, other = match.groups()
        value = (
            values.get(code) if code else next(part for part in (quoted, escaped, other) if part is not None)
        )
        if value is None:
            return None
        shown.append(value)
    return "".join(shown)


def _dateformat(arguments: list[str], wiki: Wiki) -> str | None:
    text, form = [*arguments, ""][:2]
    date = dates.parsed_date(text)
    if not form or date is None or date[2] is None:
        return text if date is not None and not form else None
    if wiki.language != "en" or form.lower() not in ("dmy", "mdy"):
        return None
    return dates.written(date, "en", form.lower() == "dmy")


FUNCTIONS: dict[str, Function] = {
    "#if": _if,
    "#ifeq": _ifeq,
    "#ifexpr": _ifexpr,
    "#iferror": _iferror,
    "#switch": _switch,
    "#expr": _expr,
    "#tag": _tag,
    "#time": _time,
    "#timel": _time,
    "#dateformat": _dateformat,
    "formatnum": _formatnum,
    "plural": _plural,
    "padleft": _pad(True),
    "padright": _pad(False),
    "lc": _changed(str.lower),
    "uc": _changed(str.upper),
    "lcfirst": _changed(lambda text: text[:1].lower() + text[1:]),
    "ucfirst": _changed(lambda text: text[:1].upper() + text[1:]),
    # MediaWiki shows these as text, because they are not functions there. They must not be mistaken for
    # templates.
    **dict.fromkeys(
        ("#invoke", "#property", "#statements", "#ifexist", "int", "grammar"), lambda arguments, wiki: None
    ),
}

TOKEN = re.compile(
    r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|([a-z]+)|(<>|<=|>=|!=|[-+*/^()<>=]))", re.IGNORECASE
)
# Binary operators: precedence and function. All are left-associative.
BINARY: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "e": (10, lambda left, right: left * 10.0**right),
    "^": (8, lambda left, right: left**right),
    "*": (7, operator.mul),
    "/": (7, operator.truediv),
    "div": (7, operator.truediv),
    "mod": (7, lambda left, right: math.fmod(int(left), int(right))),
    "fmod": (7, math.fmod),
    "+": (6, operator.add),
    "-": (6, operator.sub),
    "round": (5, lambda left, right: _round(left, int(right))),
    **{name: (4, test) for name, test in {"<": operator.lt, ">": operator.gt, "<=": operator.le}.items()},
    **{name: (4, test) for name, test in {">=": operator.ge, "=": operator.eq, "!=": operator.ne}.items()},
    "<>": (4, operator.ne),
    "and": (3, lambda left, right: float(bool(left) and bool(right))),
    "or": (2, lambda left, right: float(bool(left) or bool(right))),
}
UNARY: dict[str, Callable[[float], float]] = {
    "not": lambda value: float(not value),
    "abs": abs,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "ln": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
}
SIGN_BINDS, FUNCTION_BINDS = 10, 9
MAX_EXPRESSION_CHARS, MAX_NESTING = 1000, 50


def calculated(expression: str) -> float | None:
    """Return the value of an expression in {{#expr:}}; None if it is malformed or undefined."""
    text = expression.translate(MINUS_SIGNS).replace("&minus;", "-").replace("&lt;", "<").replace("&gt;", ">")
    text = text.replace(LESS_THAN, "<").strip()
    if len(text) > MAX_EXPRESSION_CHARS or GAP in text or BAR in text:
        return None
    tokens: list[float | str] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(float(match[1]) if match[1] else (match[2] or match[3]).lower())
        position = match.end()
    try:
        value, end = _expression(tokens, 0, 0, 0)
    except (ArithmeticError, ValueError, IndexError, TypeError):
        return None
    # A negative number raised to a fractional power is complex.
    if end < len(tokens) or isinstance(value, complex) or not math.isfinite(value):
        return None
    return float(value)


def _expression(tokens: list[float | str], position: int, least: int, depth: int) -> tuple[float, int]:
    """Parse an expression from `position` on, and return (its value, the position after it).

    Only operators of precedence `least` or higher are included.
    """
    token = tokens[position]
    if depth > MAX_NESTING:
        raise ValueError
    position += 1
    if isinstance(token, float):
        value = token
    elif token == "(":
        value, position = _expression(tokens, position, 0, depth + 1)
        if tokens[position] != ")":
            raise ValueError
        position += 1
    elif token in ("-", "+"):
        value, position = _expression(tokens, position, SIGN_BINDS, depth + 1)
        value = -value if token == "-" else value
    elif token in UNARY:
        value, position = _expression(tokens, position, FUNCTION_BINDS, depth + 1)
        value = UNARY[token](value)
    elif token in ("pi", "e"):
        value = math.pi if token == "pi" else math.e
    else:
        raise ValueError
    while position < len(tokens) and tokens[position] in BINARY:
        binds, apply = BINARY[str(tokens[position])]
        if binds < least or (binds == least and least > 0):
            break
        right, position = _expression(tokens, position + 1, binds, depth + 1)
        value = float(apply(value, right))
    return value, position


def _round(value: float, digits: int) -> float:
    """Round half away from zero, using the shortest digits of the number, as PHP does."""
    from decimal import ROUND_HALF_UP, Decimal

    step = Decimal(1).scaleb(-digits)
    return float((Decimal(repr(float(value))) / step).quantize(Decimal(1), rounding=ROUND_HALF_UP) * step)


def php_number(value: float) -> str:
    """Return a number in PHP's format: 14 significant digits, 1.0E+25."""
    text = f"{value:.14G}"
    digits, exponent, power = text.partition("E")
    if not exponent:
        return text
    return f"{digits if '.' in digits else f'{digits}.0'}E{int(power):+}"
