"""Compares the tensors of two checkpoints of the same model bit for bit, whatever their layouts.

    python -m nbtrain.checkpoint.weights.differences < {"before": FOLDER, "now": FOLDER}

The answers are JSON lines. The fp32 weights and the optimizer's moments of each parameter are compared,
without the vocabulary's padding. One tensor of each checkpoint is in memory at a time.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nbtrain.base.process.answers import answer_request
from nbtrain.base.process.signals import hear_signals
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.model.names import OF_VOCABULARY


def main() -> int:
    return answer_request(answers)


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield "progress" for each parameter, "tensor" for each tensor that differs, and finally "end"."""
    before, now = (CheckpointStore(Path(request[key])) for key in ("before", "now"))
    total = sum(parameter.count for parameter in before.parameters.values())
    compared = done = 0
    for name, parameter in before.parameters.items():
        if name not in now.parameters:
            yield {"kind": "tensor", "name": name, "state": "", "reason": "is only in the first checkpoint"}
            continue
        for state in parameter.states:
            compared += 1
            if (found := tensor_difference(before, now, name, state)) is not None:
                yield {"kind": "tensor", "name": name, "state": state, **found}
        done += parameter.count
        yield {"kind": "progress", "done": done, "total": total}
    for name in now.parameters:
        if name not in before.parameters:
            yield {"kind": "tensor", "name": name, "state": "", "reason": "is only in the second checkpoint"}
    yield {"kind": "end", "tensors": compared}


def tensor_difference(
    before: CheckpointStore, now: CheckpointStore, name: str, state: str
) -> dict[str, Any] | None:
    """Return how one state of a parameter differs: a reason, or the number of different elements and the
    largest difference. None if all bits are equal.
    """
    if state not in now.parameters[name].states:
        return {"reason": f"has no {state} in the second checkpoint"}
    ours, theirs = (store.full(name, state).contiguous() for store in (before, now))
    if name in OF_VOCABULARY:
        rows = min(before.vocab_size, now.vocab_size)
        ours, theirs = ours[:rows].contiguous(), theirs[:rows].contiguous()
    if ours.shape != theirs.shape:
        return {"reason": f"has the shapes {list(ours.shape)} and {list(theirs.shape)}"}
    unequal = ours.view(torch.int32) != theirs.view(torch.int32)
    if not (different := int(unequal.sum())):
        return None
    return {
        "reason": "",
        "different": different,
        "elements": ours.numel(),
        "largest": float((ours - theirs).abs().nan_to_num(torch.inf, torch.inf).max()),
    }


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
