"""Readable numbers: counts, bytes and times in a few characters."""

import time


def count(value: float) -> str:
    """Format a count: 126638592 as "126.6M", 2500000000 as "2.5B". Units are powers of 1000."""
    for unit, mark in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            digits = 2 if abs(value) < 10 * unit else 1
            return f"{value / unit:.{digits}f}".rstrip("0").rstrip(".") + mark
    return f"{value:g}"


def count_of(value: float, total: float) -> str:
    """Format a part of a total: 950000 of 1230000 as "0.95/1.23M". The unit of both is the total's."""
    whole = count(total)
    number = whole.rstrip("kMBT")
    if (mark := whole.removeprefix(number)) == "":
        return f"{count(value)}/{whole}"
    unit = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[mark]
    digits = 2 if abs(total) < 10 * unit else 1
    return f"{f'{value / unit:.{digits}f}'.rstrip('0').rstrip('.')}/{whole}"


def rate(value: float) -> str:
    """Format a learning rate: 0.00199 as "1.99e-3"."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def counted(number: int, thing: str) -> str:
    """Return a number with its noun in the singular or plural, such as "1 step" or "1,024 steps"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def amount(value: float, digits: int = 2) -> str:
    """Format an amount of money, hours or energy: 1234.5 as "1,234", 3.456 as "3.5".

    `digits` is the number of significant digits: 2 for an estimate, 3 for a measurement. Digits before the
    decimal point are never rounded away.
    """
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def size(num_bytes: float) -> str:
    """Format a number of bytes: 42949672960 as "40.0 GiB". Units are powers of 1024."""
    for unit, mark in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:.1f} {mark}"
    return f"{num_bytes:.0f} B"


def utc(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time (seconds since the epoch) as "2026-11-28 18:44:06", in UTC.

    All text written by Python shows UTC and says so, next to the time or once above a list, because the hosts
    of a run may be in several time zones, and job ids are in UTC too. Pages in the browser use the reader's
    time zone.
    """
    return time.strftime(form, time.gmtime(seconds))


def moment(seconds: float) -> str:
    """Return a time as "2026-11-28 18:44:06 UTC"."""
    return f"{utc(seconds)} UTC"


def duration(seconds: float) -> str:
    """Format an estimated time: 28800 as "8.0 h", 4700000 as "54 d".

    More digits would make an estimate look exact.
    """
    for unit, mark in ((365.25 * 86400, "years"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.{0 if seconds >= 10 * unit else 1}f} {mark}"
    return f"{seconds:.0f} s"


def step(seconds: float) -> str:
    """Format a step's time: 98.7 as "98.7 s", 1401 as "1,401 s"."""
    return f"{seconds:,.0f} s" if seconds >= 999.5 else f"{seconds:.3g} s"


def elapsed(seconds: float) -> str:
    """Format a measured time in two units, as on a clock: 200 as "3 min 20 s", 90000 as "1 d 1 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
