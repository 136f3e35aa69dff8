"""Terms: the summands of an estimate, each with its formula, the numbers in it, and its source.

An estimate itself has only numbers, because a search computes thousands of estimates. The `explain` functions
return the Terms of one estimate for readers. A test asserts that the Terms add up to the estimate.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Term:
    """A summand of an estimate."""

    name: str
    """Name such as "weights", or a path from the whole to the part, such as "activations / attention"."""
    value: float
    """Value in `unit`. Terms that are added must have the same unit."""
    unit: str
    """Unit such as "bytes" or "seconds"."""
    formula: str
    """The formula with its numbers, such as "126,638,592 parameters x 2 bytes / 4 ranks"."""
    source: str
    """Section of a paper, file of a program or measurement that the formula comes from."""


def total(terms: Iterable[Term], unit: str) -> float:
    """Return the sum of all terms in `unit`."""
    return sum(term.value for term in terms if term.unit == unit)


def below(terms: Iterable[Term], name: str) -> list[Term]:
    """Return the term called `name` and all terms whose path starts with it."""
    return [term for term in terms if term.name == name or term.name.startswith(f"{name} / ")]


def scaled(term: Term, factor: float, why: str) -> Term:
    """Return the term multiplied by `factor`, which the formula shows with its reason `why`."""
    return replace(term, value=term.value * factor, formula=f"({term.formula}) x {factor:g} {why}")


def product(*factors: tuple[float, str]) -> str:
    """Format a product: (12, "layers"), (2.0, "bytes") becomes "12 layers x 2 bytes".

    Factors of 1 are omitted, except for the first. A factor of the form 1/n is written as a division by n.
    """
    text = ""
    for value, unit in factors:
        inverse = round(1 / value) if 0 < value < 1 else 0
        is_division = inverse > 1 and abs(inverse * value - 1) < 1e-9
        if value == 1 and text:
            continue
        if is_division and text:
            text += f" / {_number(inverse)} {unit}"
        else:
            text += f"{' x ' if text else ''}{_number(value)} {unit}"
        text = text.rstrip()
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
