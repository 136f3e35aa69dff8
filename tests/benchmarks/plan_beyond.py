"""Published rows that are not among the cases: whether each run fitted, and whether the plan agrees.

They are all rows of tr3m-1B3.md, and the 52B rows of gpt2.md with ZeRO 3 on 64 GPUs, except rows that are a
case already or differ from one only in speed (bigscience-workshop/bigscience, experiments; micro batches of
64 are from gpt2-meg-ds-zero/meg_ds_zero_gpt2_perf_n16.slurm). Of the rules, one was chosen with these rows in
view: the logits that wait in DeepSpeed's pipeline (nbtrain/planner/setup/engines.py).
"""

import dataclasses
from typing import Any

from nbtrain.config.arithmetic.devices import find_device
from tests.benchmarks import plan_memory
from tests.benchmarks.published import Published

SMALL = {"device": find_device("V100-16GB")}


def _zero3(tensor: int, micro: int) -> dict[str, Any]:
    """Return the fields of a run with one micro batch per step on 64 GPUs."""
    data = 64 // tensor
    sizes = {"micro_batch_size": micro, "global_batch_size": micro * data}
    return {"tensor_parallel_size": tensor, "data_parallel_size": data, **sizes}


# The case that a row differs from, the fields in which it differs, and whether it fitted.
ROWS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("bs-1b3-v100-32-tp1-pp2-mb1-full", {"micro_batch_size": 2}, True),
    ("bs-1b3-v100-32-tp1-pp2-mb1-full", {"micro_batch_size": 8}, True),
    ("bs-1b3-v100-32-tp1-pp2-mb1-full", {"micro_batch_size": 16}, False),
    ("bs-1b3-v100-32-tp1-pp4-mb8-full", {"micro_batch_size": 1}, True),
    ("bs-1b3-v100-32-tp1-pp4-mb2-none", {"micro_batch_size": 1}, True),
    ("bs-1b3-v100-16-tp1-pp2-mb4", {"micro_batch_size": 1}, True),
    ("bs-1b3-v100-16-tp1-pp2-mb4", {"micro_batch_size": 2}, True),
    ("bs-1b3-v100-32-tp1-pp4-mb8-full", {"micro_batch_size": 1, **SMALL}, True),
    ("bs-1b3-v100-32-tp1-pp4-mb8-full", {"micro_batch_size": 4, **SMALL}, True),
    ("bs-1b3-v100-32-tp1-pp4-mb8-full", {"micro_batch_size": 8, **SMALL}, False),
    ("bs-1b3-v100-16-tp1-pp8-mb4", {"micro_batch_size": 1}, True),
    ("bs-1b3-v100-16-tp1-pp8-mb4", {"micro_batch_size": 8}, False),
    ("bs-52b-v100-z3-tp4", _zero3(4, 52), True),
    ("bs-52b-v100-z3-tp4", _zero3(4, 56), True),
    ("bs-52b-v100-z3-tp4", _zero3(4, 64), False),
    ("bs-52b-v100-z3-tp4", _zero3(2, 32), True),
    ("bs-52b-v100-z3-tp4", _zero3(2, 36), True),
    ("bs-52b-v100-z3-tp4", _zero3(2, 38), True),
    ("bs-52b-v100-z3-tp1-mb20", _zero3(1, 16), True),
    ("bs-52b-v100-z3-tp1-mb20", _zero3(1, 18), True),
    ("bs-52b-v100-hf-z3", _zero3(1, 4), True),
    ("bs-52b-v100-hf-z3", _zero3(1, 6), True),
    ("bs-52b-v100-hf-z3", _zero3(1, 10), True),
    ("bs-52b-v100-hf-z3-optoffload", {"offload_param": "cpu"}, True),
)


def shares(cases: list[Published]) -> list[tuple[bool, float]]:
    """Return, for each row, whether the run fitted and the fraction of its device that the plan needs."""
    by_id = {case.id: case for case in cases}
    found = []
    for name, changes, fitted in ROWS:
        setup = dataclasses.replace(plan_memory.setup_of(by_id[name]), **changes)
        found.append((fitted, plan_memory.device_share(by_id[name], setup)))
    return found


def sentence(cases: list[Published]) -> str:
    """Describe how many verdicts are right, and by how much the plan exceeds the cards
    of fitting runs it refuses.
    """
    found = shares(cases)
    failed = [share > 1 for fitted, share in found if not fitted]
    fits = [share for fitted, share in found if fitted]
    refused = [share - 1 for share in fits if share > 1]
    return (
        f"{sum(failed)} of {len(failed)} more runs that ran out of memory are recognised, and "
        f"{len(fits) - len(refused)} of {len(fits)} that fitted; the other {len(refused)} are planned "
        f"{min(refused):.0%} to {max(refused):.0%} above their cards.".replace("%", " %")
    )
