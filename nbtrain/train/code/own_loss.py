"""The user's loss() as the model calls it, and its scalars over the micro batches and ranks of a step.

    loss(logits, labels, mask, batch) -> (sum of losses, number of tokens, {name: scalar})

    scalar     (sum, count)   reported as sum / count over the whole step, as in Megatron's loss_func
               number         reported as its sum over the whole step

The loss of a step is the sum of all sums divided by the number of tokens in the loss, which is known before
the forward pass. The number of tokens that loss() returns must be the number in the mask.
"""

import re
from typing import Any

import torch

from nbtrain.base.errors import CodeError
from nbtrain.checkpoint.user_code import UserCode, shown
from nbtrain.model.custom_loss import LossBatch
from nbtrain.parallel.agreement import gather_objects
from nbtrain.parallel.vocabulary import Vocabulary
from nbtrain.train.engine.engine import TrainEngine

SCALAR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
NAME_RULE = "A name begins with a letter or digit and has at most 100 letters, digits, _, . and -"
# The returned count is compared with the mask's count; both are sums of fp32 numbers.
COUNT_TOLERANCE = 1e-5
RETURNS = "return (sum, number of tokens, {}), for example ((losses * mask).sum(), mask.sum(), {})"


class OwnLoss:
    """A LossFunction (model/custom_loss.py) that calls the user's loss() and keeps the values returned during
    a step.
    """

    def __init__(self, code: UserCode, dataset_names: tuple[str, ...] = ()):
        self._code = code
        self.dataset_names = dataset_names
        self.takes_vocabulary = "vocabulary" in code.parameters["loss"]
        self._names: tuple[str, ...] | None = None
        self._pairs: tuple[bool, ...] = ()
        self._rows: list[torch.Tensor] = []
        self._agreement: tuple[tuple[str, ...], tuple[bool, ...]] | None = None

    def __call__(self, logits: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary) -> torch.Tensor:
        arguments: list[Any] = [logits, batch.labels, batch.mask, batch]
        result = self._code.call("loss", *arguments, *([vocabulary] if self.takes_vocabulary else []))
        if not isinstance(result, tuple) or len(result) != 3:
            raise self._error(f"loss returned {shown(result)}", f"It must {RETURNS}")
        total, count, scalars = result
        if not isinstance(total, torch.Tensor) or total.dim() or not total.is_floating_point():
            raise self._error(
                f"loss returned {shown(total)} as the sum of losses, which must be a floating-point tensor "
                "without dimensions",
                "Sum the losses of the tokens: (losses * mask).sum()",
            )
        learns = torch.is_grad_enabled() and logits.requires_grad
        if learns and not total.requires_grad:
            raise self._error(
                "the sum of losses that loss returned does not depend on the logits, so no weight would be "
                "trained",
                "Compute the sum from `logits`, without .detach(), .item() or torch.no_grad()",
            )
        count = self._number("the number of tokens that loss returned", count, logits.device)
        if torch.is_grad_enabled():
            self._note(count, scalars, logits.device)
        return total.float()

    def _note(self, count: torch.Tensor, scalars: Any, device: torch.device) -> None:
        if not isinstance(scalars, dict):
            raise self._error(
                f"loss returned {shown(scalars)} as its scalars", "Return a dict, or {} for no scalars"
            )
        names = tuple(sorted(scalars, key=str))
        pairs = tuple(isinstance(scalars[name], tuple | list) for name in names)
        if self._names is None:
            check_names(self._code, "loss", names)
            self._names, self._pairs = names, pairs
        elif (names, pairs) != (self._names, self._pairs):
            raise self._error(
                f"loss returned the scalars {_listed(self._names)} in an earlier call and {_listed(names)} "
                "now",
                "Return the same names from every call, with (0, 0) for a mean over no tokens",
            )
        row = [count]
        for name, is_pair in zip(names, pairs, strict=True):
            value = scalars[name]
            if is_pair and len(value) != 2:
                raise self._error(f"the scalar {name} is {shown(value)}", "Return (sum, count) or a number")
            total, number = value if is_pair else (value, 1.0)
            row.append(self._number(f"the scalar {name}", total, device))
            row.append(self._number(f"the count of the scalar {name}", number, device))
        self._rows.append(torch.stack(row))

    def _number(self, what: str, value: Any, device: torch.device) -> torch.Tensor:
        """Return a number, or a tensor with one element, as an fp64 tensor without dimensions on `device`."""
        if isinstance(value, bool) or not isinstance(value, int | float | torch.Tensor):
            raise self._error(f"{what} is {shown(value)}", "It must be a number")
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        if tensor.numel() != 1:
            raise self._error(
                f"{what} is {shown(value)}", "It must be one number, such as the sum of the tensor"
            )
        return tensor.reshape(()).to(device, torch.float64, non_blocking=True)

    def begin_step(self) -> None:
        """Discard the values that loss() returned in an earlier step, or in a pass whose results are not
        used.
        """
        self._rows.clear()

    def end_step(self, engine: TrainEngine, tokens: torch.Tensor | None) -> dict[str, float]:
        """Return {name: value} of the step's scalars, on every rank; a mean whose count is 0 is omitted.

        `tokens` is the number of tokens in the loss of the step. Waits for the device. All ranks call it
        together. Raises CodeError if loss() returned a different number of tokens, or if the scalars have
        different names on different ranks.
        """
        names, pairs = self._agreed(engine)
        device = engine.deepspeed.device
        width = 1 + 2 * len(names)
        sums = torch.stack(self._rows).sum(0) if self._rows else torch.zeros(width, dtype=torch.float64)
        count, *values = engine.over_data_axis(sums.to(device)).tolist()
        if tokens is not None:
            self._compare_count(count, float(tokens))
        found = {}
        for number, (name, is_pair) in enumerate(zip(names, pairs, strict=True)):
            total, weight = values[2 * number : 2 * number + 2]
            if is_pair and weight:
                found[name] = total / weight
            elif not is_pair:
                found[name] = total
        return found

    def check_count(self, tokens: torch.Tensor) -> None:
        """Raise CodeError if the numbers of tokens that loss() returned since begin_step() do not add up to
        `tokens`.
        """
        self._compare_count(float(sum(row[0] for row in self._rows)), float(tokens))

    def _compare_count(self, count: float, expected: float) -> None:
        # Not `difference > tolerance`, which is False for a count of NaN.
        if not abs(count - expected) <= COUNT_TOLERANCE * max(expected, 1.0):
            raise self._error(
                f"loss counted {count:,.6g} tokens, but the masks have {expected:,.6g}",
                "nbtrain divides the sum of losses by the number of tokens in the masks, so return "
                "mask.sum() as the number of tokens. To weight tokens, multiply their losses by the "
                "weights before summing",
            )

    def _agreed(self, engine: TrainEngine) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        """Return the names of the scalars, and whether each is a (sum, count) pair, the same on every rank.

        The ranks agree after the first step, because ranks without a loss learn the names from the others.
        """
        if self._agreement is None:
            own = (self._names or (), self._pairs) if engine.has_loss else None
            known = [entry for entry in gather_objects(own) if entry is not None]
            for other in known:
                if other != known[0]:
                    raise self._error(
                        f"loss returned the scalars {_listed(known[0][0])} on one rank and "
                        f"{_listed(other[0])} on another",
                        "Return the same names on every rank, with (0, 0) for a mean over no tokens",
                    )
            self._agreement = known[0]
        return self._agreement

    def _error(self, problem: str, fix: str) -> CodeError:
        return self._code.error("loss", problem, f"{fix}.")


def check_names(code: UserCode, function: str, names: Any) -> None:
    """Raise CodeError unless every scalar name is a string that matches SCALAR_NAME."""
    for name in names:
        if not isinstance(name, str) or not SCALAR_NAME.fullmatch(name):
            raise code.error(function, f"{function} returned a scalar named {name!r}", f"{NAME_RULE}.")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(str, names)) or "none"
