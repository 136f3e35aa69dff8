"""Fault injection: the format of NBTRAIN_FAULTS in backend.env.

Read before launch (jobs/checks/preflight.py) and by the ranks (train/health/faults.py), so that an order that
no rank understands starts none.
"""

import json
import signal
from typing import Any

VARIABLE = "NBTRAIN_FAULTS"
KINDS = ("nan", "spike", "weights", "kill", "stop", "sleep", "raise", "oom", "memory", "full")
"""Values of `do`; docs/try-a-fault.md says what each one does."""
FIELDS = dict.fromkeys(("rank", "attempt", "step", "do"), "all") | {
    "factor": "spike",
    "signal": "kill",
    "message": "raise",
}
"""{field of an order: the `do` that it belongs to}."""
EXAMPLE = '[{"step": 6, "do": "nan"}]'


def read_orders(text: str) -> list[dict[str, Any]]:
    """Return the orders in the variable's value. Raises ValueError with the value and the rule."""
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
    """Return the rule that an order violates; None if it is valid."""
    if not isinstance(order, dict):
        return f"must be an object such as {EXAMPLE[1:-1]}"
    if missing := [key for key in ("step", "do") if key not in order]:
        return f"needs {' and '.join(missing)}"
    kind = order["do"]
    if kind not in KINDS:
        return f"do must be one of {', '.join(KINDS)}"
    if unknown := [key for key in order if FIELDS.get(key) not in ("all", kind)]:
        known = [key for key, of in FIELDS.items() if of in ("all", kind)]
        return f"has {', '.join(unknown)}; do: {kind} takes {', '.join(known)}"
    for key in ("step", "rank", "attempt"):
        if key in order and not (_whole(order[key]) and order[key] >= 0):
            return f"{key} must be a whole number, at least 0"
    if kind == "raise" and not isinstance(order.get("message"), str):
        return "do: raise needs the text of its error, message"
    if "factor" in order and (
        isinstance(order["factor"], bool) or not isinstance(order["factor"], int | float)
    ):
        return "factor must be a number"
    valid = {int(number) for number in signal.valid_signals()}
    if "signal" in order and not (_whole(order["signal"]) and order["signal"] in valid):
        return "signal must be the number of a signal, such as 9"
    return None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
