"""Reads numbers as editors type them, and writes them in the number formats of wikis.

The formats come from MediaWiki's language files (separatorTransformTable, minimumGroupingDigits and
digitGroupingPattern of version 1.39), which {{formatnum:}} uses. Languages with digits other than 0 to 9 are
not supported, because each wiki may switch those digits off.
"""

# ruff: noqa: SIM905, RUF001 (word lists read best as words; letters that look alike are meant)

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

COMMA_AND_POINT = """
ady ak am ami ang arc ary arz bbc bcl bi cdo ceb ch chr chy cr cy dag din diq dtp dv ee en fat fj ga gan gd
gom got gpe gur guw gv ha hak haw he hif ie ig ii ik ilo iu ja jam jbo kbd kcg kg ki ko kr kw lfn lg mi mn
mos ms mt na nan nov nso nv ny om pag pam pap pcm pih pwn sco shn shy si simple sm sn so ss st sw szy tay
tdd th ti tl tly tn to tpi trv ts tum tw ug ur ve vo war wuu xmf yi yo yue za zh zh-cn zh-hans zh-hant zh-hk
zh-sg zh-tw zu
""".split()
POINT_AND_COMMA = """
ace az ban bar bjn bs btm bug ca crh cu da de dsb el eu fo frr fy gag gl gor gsw hr hsb id is jv kl lb li
mad map-bms min mk nds nds-nl nia nl pdc pfl pnt rmy rn ro rsk rup rw sc sh sl sq sr srn stq su tr vi vls
zea
""".split()
SPACE_AND_COMMA = """
af atj be bm br co cs eml eo ff fi fon fr frp fur gcr ht hu ia io it ka kab kbp ky lij lld lmo ln lt ltg lv
mg mwl nap nb nn no nrm oc olo pcd pms pt roa-tara scn se sg sgs shi sk smn sv tet tg tk ty uz vec wa wo zgh
""".split()
# Languages that write 1234 without a space, but 12 345 with one.
SPACE_AND_COMMA_FROM_FIVE_DIGITS = """
ab alt an ast av avk ay ba be-tarask bg bxr cbk-zam ce csb cv es et ext gn guc hy hyw inh kaa kk koi krc ksh
kv lad lbe lez mdf mhr mrj myv nah os pl qu ru rue sah szl tt tyv udm uk vep vro xal
""".split()
# Languages that write 12,34,567: groups of two digits to the left of the last three.
LAKHS = "ml pa ta te".split()

PLAIN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
MINUS_SIGNS = str.maketrans("−–‒﹣－", "-----")
SPACES = re.compile("[\\s\u00a0\u2007-\u200a\u202f\u205f]+|&nbsp;|&thinsp;|&#160;|&#8239;")
ENGLISH = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


@dataclass(frozen=True)
class NumberFormat:
    """The decimal and thousands separators of a language."""

    thousands: str = ","
    decimal: str = "."
    least_digits: int = 4
    """Minimum number of digits for which thousands are separated."""
    is_lakh: bool = False

    @staticmethod
    @cache
    def of(language: str) -> "NumberFormat | None":
        """Return the number format of a language; None if it is unknown."""
        if language in COMMA_AND_POINT:
            return NumberFormat()
        if language in POINT_AND_COMMA:
            return NumberFormat(".", ",")
        if language in SPACE_AND_COMMA:
            return NumberFormat(" ", ",")
        if language in SPACE_AND_COMMA_FROM_FIVE_DIGITS:
            return NumberFormat(" ", ",", 5)
        return NumberFormat(is_lakh=True) if language in LAKHS else None

    def write(self, number: str) -> str:
        """Return a number in plain form (-1234.5) with this language's separators."""
        sign, digits = (number[0], number[1:]) if number[:1] in "+-" else ("", number)
        whole, point, fraction = digits.partition(".")
        if len(whole) >= self.least_digits:
            whole = self._grouped(whole)
        return f"{sign}{whole}{self.decimal if point else ''}{fraction}"

    def _grouped(self, digits: str) -> str:
        head, groups = digits[:-3], [digits[-3:]]
        size = 2 if self.is_lakh else 3
        while head:
            groups.append(head[-size:])
            head = head[:-size]
        return self.thousands.join(reversed(groups))

    def read(self, text: str) -> str | None:
        """Convert a number with this language's separators to plain form (-1234.5); None for other text."""
        text = text.translate(MINUS_SIGNS)
        if self.thousands == " ":
            text = SPACES.sub("", text)
        elif self.thousands:
            whole, point, fraction = text.partition(self.decimal)
            if self.thousands in fraction:
                return None
            if self.thousands in whole and not re.fullmatch(
                rf"[+-]?[0-9]{{1,3}}(?:{re.escape(self.thousands)}[0-9]{{3}})+", whole
            ):
                return None
            text = f"{whole.replace(self.thousands, '')}{point}{fraction}"
        if self.decimal != ".":
            if "." in text:
                return None
            text = text.replace(self.decimal, ".")
        return text if PLAIN.fullmatch(text) else None


ENGLISH_FORMAT = NumberFormat()


def plain(text: str) -> str | None:
    """Return a number in a template parameter in plain form: 1234.5 for 1,234.5.

    Returns None if the parameter is not a number, and for 1,5, which some templates read as 15 and others as
    one and a half.
    """
    text = text.strip().translate(MINUS_SIGNS)
    if PLAIN.fullmatch(text):
        return text
    return text.replace(",", "") if ENGLISH.fullmatch(text) else None


def shortest(number: Decimal | float) -> str:
    """Return a number in plain form without trailing zeros after its point."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rounded(number: Decimal, digits: int) -> Decimal:
    """Round to `digits` decimals (may be negative), half away from zero, as MediaWiki's `round` does."""
    from decimal import ROUND_HALF_UP

    step = Decimal(1).scaleb(-digits)
    result = (number / step).quantize(Decimal(1), rounding=ROUND_HALF_UP) * step
    return result if digits >= 0 else result.quantize(Decimal(1))
