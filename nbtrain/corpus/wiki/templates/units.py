"""Evaluates templates for amounts with units: {{convert}}, {{val}} and similar templates.

{{convert}} shows the amount that the editor wrote, followed by a conversion to other units in brackets. Here
the amount is returned with the unit's symbol, without the conversion, which Module:Convert rounds by special
rules.
"""

# ruff: noqa: RUF001 (letters that look alike are meant)

import re

from nbtrain.corpus.wiki.markup import fraction
from nbtrain.corpus.wiki.templates.call import Call, names
from nbtrain.corpus.wiki.templates.numbers import ENGLISH_FORMAT, MINUS_SIGNS, NumberFormat, plain

# Unit codes of Module:Convert that are equal to the unit's symbol.
SAME = """
m|km|cm|mm|nm|pm|dm|Mm|ft|in|yd|mi|nmi|ly|pc|kpc|Mpc|AU|ha|g|kg|mg|t|lb|oz|st|L|dL|cL|mL|hL|kL|ML|GL|km/h
m/s|mph|kn|ft/s|km/s|Pa|kPa|hPa|MPa|GPa|bar|mbar|psi|atm|Torr|mmHg|inHg|W|kW|MW|GW|TW|hp|bhp|shp|J|kJ|MJ|GJ
kWh|MWh|GWh|TWh|Wh|eV|keV|MeV|GeV|cal|kcal|BTU|N|kN|MN|lbf|Hz|kHz|MHz|GHz|V|kV|A|mA|K|s|ms|h|min|bbl|cwt
ppm|dB|mol|acres|furlong|fathom|hand|league|chain|link
"""
OTHERS = """
metre=m|meter=m|kilometre=km|kilometer=km|centimetre=cm|millimetre=mm|foot=ft|feet=ft|inch=in|inches=in
yard=yd|yards=yd|mile=mi|miles=mi|um=μm|μm=μm|µm=μm|km2=km²|m2=m²|cm2=cm²|mm2=mm²|sqkm=km²|sqm=m²|sqcm=cm²
sqmm=mm²|sqmi=sq mi|sqft=sq ft|sqyd=sq yd|sqin=sq in|mi2=sq mi|ft2=sq ft|in2=sq in|hectare=ha|hectares=ha
m3=m³|km3=km³|cm3=cm³|mm3=mm³|cc=cc|cuft=cu ft|cuin=cu in|cuyd=cu yd|cumi=cu mi|ft3=cu ft|l=L|ml=mL|hl=hL
cl=cL|dl=dL|impgal=imp gal|USgal=US gal|usgal=US gal|U.S.gal=US gal|impfloz=imp fl oz|USfloz=US fl oz
usfloz=US fl oz|kilogram=kg|kilograms=kg|gram=g|grams=g|tonne=t|tonnes=t|pound=lb|pounds=lb|lbs=lb|ounce=oz
ounces=oz|stone=st|LT=long tons|ST=short tons|long ton=long tons|short ton=short tons|ozt=ozt|kmh=km/h
km/hr=km/h|kph=km/h|knot=kn|knots=kn|C=°C|°C=°C|F=°F|°F=°F|R=°R|°R=°R|C-change=°C|F-change=°F|K-change=K
kW·h=kWh|kW.h=kWh|PS=PS|kcal=kcal|Nm=N⋅m|N.m=N⋅m|N·m=N⋅m|lbft=lb⋅ft|lb.ft=lb⋅ft|lb·ft=lb⋅ft|ftlb=ft⋅lb
lb-f=lbf|/km2=/km²|/sqkm=/km²|/sqmi=/sq mi|PD/km2=/km²|PD/sqkm=/km²|PD/sqmi=/sq mi|/mi2=/sq mi|/ha=/ha
/acre=/acre|kg/m3=kg/m³|g/cm3=g/cm³|kg/cm3=kg/cm³|g/m3=g/m³|mg/L=mg/L|lb/cuft=lb/cu ft|lb/ft3=lb/cu ft
m3/s=m³/s|cuft/s=cu ft/s|cuft/min=cu ft/min|cuft/d=cu ft/d|USgal/d=US gal/d|m3/h=m³/h|m3/d=m³/d
m3/min=m³/min|L/s=L/s|L/min=L/min|USgal/min=US gal/min|m/s2=m/s²|ft/s2=ft/s²|kg/m2=kg/m²|W/m2=W/m²
kg/cm2=kg/cm²|lb/sqin=psi|t/ha=t/ha|kg/ha=kg/ha|mpgus=mpg|mpgUS=mpg|mpgimp=mpg (imp)|L/100km=L/100 km
l/100km=L/100 km|metric ton=t|metric tons=t|nautical mile=nmi|lightyear=ly|parsec=pc|hour=h|second=s
acre.ft=acre⋅ft|acre·ft=acre⋅ft|oilbbl=bbl|oilbbl/d=bbl/d|bbl/d=bbl/d|USbbl=US bbl|acre=acres|carat=carats
carats=carats|in/h=in/h|mm/h=mm/h|kg/kW=kg/kW|lb/hp=lb/hp|hp/lb=hp/lb|kW/kg=kW/kg|kN/m=kN/m|mi/h=mph
chains=chain|hands=hand
"""
SYMBOLS: dict[str, str] = {code: code for code in names(SAME)} | dict(
    pair.split("=", 1)
    for pair in OTHERS.replace("\n", "|").split("|")
    if pair  # type: ignore[misc]
)
MULTIPLES = {"e3": "thousand", "e6": "million", "e9": "billion", "e12": "trillion"}
for letter, multiple in zip("kMGT", MULTIPLES.values(), strict=True):
    for code in ("oilbbl", "oilbbl/d", "cuft", "cuft/d", "USgal", "USgal/d", "impgal", "bbl"):
        SYMBOLS[f"{letter}{code}"] = f"{multiple} {SYMBOLS[code]}"
# Pairs of units that are used together in one amount, as in 5 ft 11 in.
COMPOSITES = {
    *(("ft", "in"), ("yd", "ft"), ("mi", "yd"), ("mi", "ft"), ("mi", "chain"), ("chain", "link")),
    *(("st", "lb"), ("lb", "oz"), ("long tons", "cwt"), ("cwt", "lb")),
}
SEPARATORS = {
    **dict.fromkeys(("-", "–", "&ndash;"), "–"),
    **dict.fromkeys(("to", "to(-)", "to-"), " to "),
    **dict.fromkeys(("and", "and(-)", "&"), " and "),
    **dict.fromkeys(("by", "x", "×", "xx", "*", "&times;", "by(x)"), " by "),
    **dict.fromkeys(("+/-", "±", "&plusmn;"), " ± "),
    "or": " or ",
    "to about": " to about ",
    "+": " + ",
    ",": ", ",
    ", and": ", and ",
    ", or": ", or ",
}
# Parameters for the appearance of the converted amount, which is omitted here.
CONVERSION = names("sing|abbr|lk|sp|sigfig|round|comma|sortable|prec|order|disp|adj|spell|near|debug|frac")
DISPLAYS = frozenset(
    ("", "b", "br", "br()", "or", "comma", "sqbr", "/", "slash", "x", "num", "semicolon", "flip")
)
ADJECTIVES = re.compile("on|off|no|1|ri[0-9]|")
MIXED_NUMBER = re.compile(r"([+-]?)(?:([0-9,]+)[+ ])?([0-9]+)//?([0-9]+)")


def amount(text: str, numbers: NumberFormat = ENGLISH_FORMAT) -> str | None:
    """Return a number as {{convert}} shows it, such as 1,234.5 or 5 1/2; None if it is not a number."""
    text = text.strip().translate(MINUS_SIGNS)
    if match := MIXED_NUMBER.fullmatch(text):
        return match[1] + fraction(match[2] or "", match[3], match[4])
    number = plain(text)
    return None if number is None else numbers.write(number.removeprefix("+"))


def symbol(code: str) -> str | None:
    """Return the symbol of a unit code; None if it is unknown."""
    if known := SYMBOLS.get(code):
        return known
    for beginning, multiple in MULTIPLES.items():
        if code.startswith(beginning) and (unit := SYMBOLS.get(code[len(beginning) :])):
            return f"{multiple} {unit}"
    return None


SINGULARS = {"acres": "acre", "carats": "carat", "long tons": "long ton", "short tons": "short ton"}


def with_unit(number: str, unit: str) -> str:
    """Return a number followed by its unit's symbol."""
    if number == "1":
        unit = SINGULARS.get(unit, unit)
    return (
        f"{number}{unit}"
        if unit.startswith(("/", "°", "%")) and unit not in ("°C", "°F", "°R")
        else f"{number} {unit}"
    )


def convert(call: Call) -> str | None:
    """Return the text of {{convert|5|ft|11|in|m}}: 5 ft 11 in, {{convert|2|to|3|km|mi}}: 2 to 3 km."""
    if not call.has_only(*CONVERSION) or call.get("disp") not in DISPLAYS:
        return None
    if call.get("order") not in ("", "flip") or not ADJECTIVES.fullmatch(call.get("adj")):
        return None
    if call.get("abbr") in ("values", "none", "unit"):
        return None
    numbers = call.wiki.numbers
    if numbers is None:
        return None
    if call.get("comma") in ("off", "gaps", "gaps3"):
        numbers = NumberFormat("", numbers.decimal, 99)
    words, position = call.words, 0
    shown = ""
    while True:
        number = amount(call[position + 1], numbers)
        if number is None:
            return None
        shown += number
        position += 1
        separator = SEPARATORS.get(call[position + 1])
        if separator is None:
            break
        shown += separator
        position += 1
    if call.get("comma") == "5" and re.search(r"\b[0-9],[0-9]{3}\b", shown):
        return None
    unit = symbol(call[position + 1])
    if unit is None:
        return None
    shown = with_unit(shown, unit)
    position += 1
    while len(words) >= position + 2:
        smaller = symbol(call[position + 2])
        number = amount(call[position + 1], numbers)
        if number is None or (unit, smaller) not in COMPOSITES or smaller is None:
            break
        shown = f"{shown} {with_unit(number, smaller)}"
        unit, position = smaller, position + 2
    return shown


UNCERTAINTY = re.compile(r"\(([0-9.]+)\)")
RAW_UNIT = re.compile(r"[A-Za-zµμΩ°%′″/·⋅.^() -]{1,20}[0-9²³⁻¹]?")
UNIT_POWER = re.compile(r"([A-Za-zµμΩ])\^?(-?[0-9])(?![0-9])")


def unit_text(code: str) -> str | None:
    """Return a unit of {{val}} as text, e.g. m/s2 as m/s²; None if it is not a unit."""
    code = code.strip("'")
    if known := SYMBOLS.get(code):
        return known
    if code in ("deg", "%", "percent"):
        return "°" if code == "deg" else "%"
    if not code or not RAW_UNIT.fullmatch(re.sub("<[^<>]*>", "", code)):
        return None
    powers = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return UNIT_POWER.sub(lambda match: match[1] + match[2].translate(powers), code)


def val(call: Call) -> str | None:
    """Return the text of {{val|1.5|0.2|e=6|u=kg}}: (1.5±0.2)×10^6 kg."""
    if not call.has_only("e", "u", "ul", "up", "upl", "p", "s", "end", "fmt", "long", most=3):
        return None
    numbers = call.wiki.numbers
    if numbers is None:
        return None
    if call.get("fmt") not in ("", "gaps", "commas", "none"):
        return None
    # {{val}} separates digits by gaps, which are not characters.
    if call.get("fmt") != "commas":
        numbers = NumberFormat("", numbers.decimal, 99)
    written = [None if number is None else numbers.write(number) for number in map(plain, call.words)]
    shown = written[0] if written else ""
    if shown is None:
        return None
    power = plain(call.get("e")) if call.get("e") else ""
    if power is None:
        return None
    is_range = len(written) == 3 and call[2] in ("-", "–", "to")
    if is_range and written[2] is not None and not power:
        shown = f"{shown}{'–' if call[2] != 'to' else ' to '}{written[2]}"
    elif len(written) == 3:
        if written[1] is None or written[2] is None or not written[2].startswith("-"):
            return None
        shown = f"{shown}+{written[1].lstrip('+')}{written[2]}"
        shown = f"({shown})" if power else shown
    elif len(written) == 2:
        if match := UNCERTAINTY.fullmatch(call[2]):
            shown = f"{shown}({match[1]})"
        elif written[1] is not None:
            shown = f"{shown}±{written[1]}"
            shown = f"({shown})" if power else shown
        else:
            return None
    shown = f"{call.get('p')}{shown}{call.get('s', 'end')}"
    if power:
        shown = f"{shown}×10^{power}" if call.words else f"10^{power}"
    units = [unit_text(code) for key in (("u", "ul"), ("up", "upl")) if (code := call.get(*key))]
    if None in units:
        return None
    return with_unit(shown, "/".join(map(str, units))) if units else shown


def gaps(call: Call) -> str | None:
    """Return the text of {{gaps|1|234|567}}: 1234567, because the gaps are not characters."""
    if not call.has_only("lhs", "e", "base", "u") or not call.words:
        return None
    if not all(re.fullmatch(r"[0-9.,+−()\-…]+", word) for word in call.words):
        return None
    shown = "".join(call.words).replace("−", "-")
    if call.get("e") or call.get("base"):
        power = plain(call.get("e"))
        if power is None or call.get("base") not in ("", "10"):
            return None
        shown = f"{shown}×10^{power}"
    if call.get("lhs"):
        shown = f"{call.get('lhs')} = {shown}"
    if not call.get("u"):
        return shown
    unit = unit_text(call.get("u"))
    return None if unit is None else with_unit(shown, unit)
