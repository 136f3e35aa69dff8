"""The user's scalars(step), which rank 0 calls after each step."""

from typing import Any

import torch

from nbtrain.checkpoint.user_code import UserCode
from nbtrain.train.code.own_loss import check_names


def own_scalars(code: UserCode, step: int) -> dict[str, float]:
    """Return {name: number} from scalars(step). Raises CodeError if the user's function returns anything
    else.
    """
    found: Any = code.call("scalars", step)
    if not isinstance(found, dict):
        raise code.error(
            "scalars",
            f"scalars returned an object of type {type(found).__name__}",
            "Return {name: number}, or {} for no scalars.",
        )
    check_names(code, "scalars", found)
    values = {}
    for name, value in found.items():
        number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise code.error("scalars", f"the scalar {name} is {str(value)[:50]!r}", "It must be one number.")
        values[name] = float(number)
    return values
