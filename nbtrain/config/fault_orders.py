"""Fault injection: the format of NBTRAIN_FAULTS in backend.env.

Both the checks before a launch (jobs/checks/preflight.py) and the ranks (train/health/faults.py) read it, so
an invalid order is refused before any rank starts.
"""

import json
import signal
from typing import Any

VARIABLE = "NBTRAIN_FAULTS"
KINDS = ("nan", "spike", "weights", "kill", "stop", "sleep", "raise", "oom", "memory", "full")
"""Values of `do`, the fault that an order injects. docs/try-a-fault.md explains each of them."""
FIELDS = dict.fromkeys(("rank", "attempt", "step", "do"), "all") | {
    "factor": "spike",
    "signal": "kill",
    "message": "raise",
}
"""{field of an order: the value of `do` with which it may be set, or "all"}."""
EXAMPLE = '[{"step": 6, "do": "nan"}]'


def read_orders(text: str) -> list[dict[str, Any]]:
    """Return the fault orders in `text`, the value of NBTRAIN_FAULTS.

    Raises ValueError with the invalid part and the rule that it breaks.
    """
    try:
        orders = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error}); it must be a list of orders such as {EXAMPLE}") from None
    if not isinstance(orders, list):
        raise ValueError(
            f"holds {json.dumps(orders)} instead of a list; it must be a list of orders such as {EXAMPLE}"
        )
    for number, order in enumerate(orders):
        if wrong := _wrong(order):
            raise ValueError(f"order {number} ({json.dumps(order)}): {wrong}")
    return orders


def _wrong(order: object) -> str | None:
    """Return the rule that an order breaks. None if the order is valid."""
    if not isinstance(order, dict):
        return f"must be an object such as {EXAMPLE[1:-1]}"
    if missing := [key for key in ("step", "do") if key not in order]:
        return f"must set {' and '.join(missing)}"
    kind = order["do"]
    if kind not in KINDS:
        return f"do must be one of {', '.join(KINDS)}"
    if unknown := [key for key in order if FIELDS.get(key) not in ("all", kind)]:
        known = [key for key, of in FIELDS.items() if of in ("all", kind)]
        return f"cannot set {', '.join(unknown)}; with do: {kind}, an order can set {', '.join(known)}"
    for key in ("step", "rank", "attempt"):
        if key in order and not (_whole(order[key]) and order[key] >= 0):
            return f"{key} must be a whole number of at least 0"
    if kind == "raise" and not isinstance(order.get("message"), str):
        return "with do: raise, an order must set message, the text of the error to raise"
    if "factor" in order and (
        isinstance(order["factor"], bool) or not isinstance(order["factor"], int | float)
    ):
        return "factor must be a number"
    valid = {int(number) for number in signal.valid_signals()}
    if "signal" in order and not (_whole(order["signal"]) and order["signal"] in valid):
        return "signal must be a signal number, such as 9"
    return None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
