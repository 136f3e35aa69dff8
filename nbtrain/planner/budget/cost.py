"""Cost of a run: device hours, energy, and money according to a price table that the user can edit.

Prices come from nbtrain/planner/budget/prices.yaml, and the prices.yaml in the user's data directory
overrides them. The plan names the file and its date. Energy in kWh is device hours x TDP x 1.2 x 1.15, with
an uncertainty of about a third.

    1.2     the rest of the machine and the utilization: 1.0 for BLOOM (400 W for each hour of a 400 W
            A100, arXiv:2211.02001), 1.39 for 8 H100 (970 W for a TDP of 700 W, arXiv:2412.08602)
    1.15    cooling and power supply: PUE 1.1 (Meta) to 1.2 (BLOOM)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.amounts import amount, counted
from nbtrain.base.workspace import data_home, display
from nbtrain.config.arithmetic.devices import BY_NAME, find_device, nearest_device_names
from nbtrain.config.load.other_files import PRICES, is_price_table
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import Located, read_yaml

SHIPPED = Path(__file__).with_name("prices.yaml")
MACHINE_FACTOR = 1.2
COOLING_FACTOR = 1.15

_OFFER = ("low", "usual", "high")
_SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one device per hour."""

    usual: float
    low: float
    high: float
    currency: str
    date: str
    file: str
    """Path of the price table."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Cost of the whole run."""

    device_hours: float | None
    """Hours of all devices together; None if the run's time is unknown, 0 on CPUs."""
    price: Price | None
    """Price of the device, or of spot machines if the run uses them; None if no table lists the price."""
    energy_kwh: float | None
    """Energy in kWh; None on CPUs, or if the device or the time is unknown."""
    energy_price: float | None
    """Price per kWh; None if the table does not list the price."""
    on_demand: Price | None = None
    """Price of on-demand machines, even if the run uses spot machines; None if no table lists the price."""
    spot: Price | None = None
    """Price of spot machines, even if the run uses on-demand machines; None if no table lists the price."""

    @property
    def money(self) -> float | None:
        """Cost at the usual price, plus electricity if its price is known; None if neither price is known."""
        if self.device_hours is None or (self.price is None and self.energy_price is None):
            return None
        hours = self.device_hours * self.price.usual if self.price else 0.0
        return hours + (self.energy_kwh or 0.0) * (self.energy_price or 0.0)

    def rows(self) -> dict[str, str]:
        """Return the rows of the plan about cost; {} for a CPU run."""
        if not self.device_hours:
            return {}
        found = {"GPU hours": amount(self.device_hours)}
        if self.price is None and self.on_demand is not None:
            where = display(user_prices())
            found["money"] = f"no price for spot machines; set the device's `spot` price in {where}"
        elif self.price is None:
            found["money"] = f"no price; set the price of the device in {display(user_prices())}"
        else:
            found["money"] = _money(self.device_hours, self.price)
        if self.energy_kwh is not None:
            found["energy"] = f"about {amount(self.energy_kwh)} kWh, plus or minus a third"
            if self.energy_price is not None:
                known = self.price or self.on_demand or self.spot
                unit = f" {known.currency}" if known else ""
                found["energy"] += (
                    f"; {amount(self.energy_kwh * self.energy_price)}{unit} for electricity at "
                    f"{self.energy_price:g}{unit} per kWh"
                )
        return found


def _money(hours: float, price: Price) -> str:
    span = ""
    if price.low < price.high:
        span = f" ({amount(hours * price.low)} to {amount(hours * price.high)})"
    usual = amount(hours * price.usual)
    source = f"{price.usual:.2f} per GPU hour, {price.date}, {price.file}"
    return f"about {usual} {price.currency}{span}: {source}"


def estimate_cost(config: RunConfig, seconds: float | None) -> CostEstimate:
    """Return the cost of a run that takes `seconds`; raises ConfigError if the user's table is invalid."""
    table = read_prices()
    energy_price = table.value["per_kwh"]
    resources = config.resources
    if seconds is None or resources.device == "cpu":
        return CostEstimate(None if seconds is None else 0.0, None, None, energy_price)
    hours = config.paid_gpus * seconds / 3600
    device = find_device(resources.gpu_type)
    energy = None
    if device is not None:
        energy = hours * device.tdp_watts / 1000 * MACHINE_FACTOR * COOLING_FACTOR
    name = device.name if device else None
    on_demand, spot = _price(table, name), _price(table, name, _SPOT)
    price = spot if resources.capacity == "spot" else on_demand
    return CostEstimate(hours, price, energy, energy_price, on_demand, spot)


def user_prices() -> Path:
    """Return the path of the user's own price table."""
    return data_home() / "prices.yaml"


def read_prices() -> Located:
    """Return the shipped price table, overridden by the user's table, which is checked."""
    table = read_yaml(SHIPPED)
    path = user_prices()
    if path.is_file():
        user = _read_user(path)
        same = user.value.get("currency") in (None, table.value["currency"])
        # There is no exchange rate, so shipped prices cannot be combined with another currency.
        offers = {
            **(table.value["per_device_hour"] if same else {}),
            **(user.value.get("per_device_hour") or {}),
        }
        table = table.merged_with(user)
        table.value["per_device_hour"] = offers
    return table


def is_prices(path: Path) -> bool:
    """Return whether a file is a YAML with the keys of a price table (instead of a run YAML)."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    return is_price_table(read_yaml(path).value)


def checked_prices(path: Path) -> str:
    """Check a price table; return sentences that say how many devices it has and whether plans use it.

    Raises ConfigError if the table is invalid.
    """
    devices = len(_read_user(path).value.get("per_device_hour") or {})
    place = user_prices()
    here = path.resolve() in (place.resolve(), SHIPPED.resolve())
    use = "Plans use this table."
    if not here:
        use = f"Plans do not use this file: move it to {display(place)}."
    count = counted(devices, "device")
    return f"{path.name} is not a run YAML, but a valid price table with prices for {count}. {use}"


def _read_user(path: Path) -> Located:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if all(not line.strip() or line.lstrip().startswith("#") for line in lines):
        raise ConfigError(f"{display(path)}: the file is empty. For the format, see {SHIPPED}.")
    table = read_yaml(path, display(path))
    refuse(_problems(table), ConfigError)
    return table


def _price(table: Located, name: str | None, kind: str | None = None) -> Price | None:
    """Return the on-demand price of a device or, with `kind` = "spot", its price as a spot machine.

    The result is None if the table does not list the price.
    """
    offer = table.value["per_device_hour"].get(name)
    if offer is not None and kind is not None:
        offer = offer.get(kind)
    if offer is None or all(offer.get(key) is None for key in _OFFER):
        return None
    known = [offer[key] for key in ("low", "high") if offer.get(key) is not None]
    usual = offer.get("usual") or math.prod(known) ** (1 / len(known))
    place = table.where(f"per_device_hour.{name}") or SHIPPED.name
    file = place.rpartition(":")[0] or place
    value = table.value
    return Price(usual, min([*known, usual]), max([*known, usual]), value["currency"], value["date"], file)


def _problems(table: Located) -> Iterator[Finding]:
    """Yield errors about unknown keys and devices, and about prices that are not positive numbers."""
    for key, value in table.value.items():
        place = table.where(key)
        if key not in PRICES:
            yield _problem(
                place, key, f"{key} is not a key of a price table. Known keys: {', '.join(PRICES)}."
            )
        elif key == "per_device_hour":
            if not isinstance(value, dict | None):
                words = f"{key} = {value!r} must be a mapping from devices to their prices."
                yield _problem(place, key, words, f"For the format, see {SHIPPED}.")
                continue
            for name, offer in (value or {}).items():
                yield from _offer_problems(table.where(f"{key}.{name}"), name, offer)
        elif key == "per_kwh":
            if value is not None:
                yield from _number_problems(place, key, value)
        elif not isinstance(value, str):
            yield _problem(
                place, key, f"{key} = {value!r} is not text.", 'Write the value in quotes, e.g. "2026-05".'
            )


def _offer_problems(place: str | None, name: str, offer: Any) -> Iterator[Finding]:
    key = f"per_device_hour.{name}"
    if name not in BY_NAME:
        nearest = ", ".join(nearest_device_names(name))
        hint = f" Nearest: {nearest}." if nearest else ""
        fix = "Run `nbtrain schema` for the list of gpu_type names."
        yield _problem(place, key, f"{name} is not a known device.{hint}", fix)
        return
    if isinstance(offer, dict) and offer.get(_SPOT) is not None:
        yield from _range_problems(place, f"{name}.{_SPOT}", offer[_SPOT])
        offer = {part: value for part, value in offer.items() if part != _SPOT}
        if all(value is None for value in offer.values()):
            return
    elif isinstance(offer, dict):
        offer = {part: value for part, value in offer.items() if part != _SPOT}
    yield from _range_problems(place, name, offer, f" {_SPOT} has the same form, for spot machines.")


def _range_problems(place: str | None, name: str, offer: Any, more: str = "") -> Iterator[Finding]:
    key = f"per_device_hour.{name}"
    if not isinstance(offer, dict) or not offer or set(offer) - set(_OFFER):
        words = f"{name} must be a mapping with {', '.join(_OFFER)}: prices per device and hour.{more}"
        yield _problem(place, key, words)
        return
    numbers = {part: value for part, value in offer.items() if value is not None}
    if not numbers:
        yield _problem(place, key, f"{name} has no price.", "Set usual, or set low and high.")
    wrong = [
        problem
        for part, value in numbers.items()
        for problem in _number_problems(place, f"{name}.{part}", value)
    ]
    yield from wrong
    low, high = numbers.get("low", 0), numbers.get("high", math.inf)
    if not wrong and low > high:
        yield _problem(
            place, key, f"{name}.low = {low} is more than {name}.high = {high}.", "Swap the two values."
        )


def _number_problems(place: str | None, key: str, value: Any) -> Iterator[Finding]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        words = f"{key} = {value!r} must be a number above 0, in the table's currency."
        yield _problem(place, key, words)


def _problem(place: str | None, key: str, message: str, fix: str = "") -> Finding:
    return Finding("error", "prices", key, place or "", message, fix, FATAL)
