"""Model states exactly as the engine allocates them: byte for byte, on every rank.

Ranks are forked with DeepSpeed loaded; a launch measures all layouts of one number of ranks, one after the
other (state_rank.py). Here every two choices meet in one layout at least; `--soak` takes all layouts of up to
8 ranks.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nbtrain.config.load import load_resolved
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.memory.states import states
from nbtrain.planner.setup import setup_of
from tests.parity.cases import Case
from tests.parity.pairwise import goes_together
from tests.train import launch
from tests.train.launch import ForkedRuns

CHOICES = {
    "dp": (1, 2, 4, 8),
    "tensor": ((1, False), (2, False), (2, True), (4, False), (4, True), (8, True)),
    "pp": (1, 2, 4),
    "us": (1, 2, 4, 8),
    "zero": (0, 1, 2, 3),
    "precision": ("fp32", "bf16", "fp16", "autocast"),
}
MOST_RANKS, MOST_RANKS_HERE = 8, 4
BESIDE = [
    # hpZ's second copy exists inside a step.
    Case(dp=4, zero=3, hpz=2, precision="bf16"),
    *(
        Case(dp=2, zero=zero, offload=offload, precision=precision)
        for zero, offload in ((1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "both"), (3, "param"))
        for precision in ("fp32", "bf16")
        # In fp32 an offloaded ZeRO 2 keeps parameters that two ranks share whole.
        if (zero, precision) != (2, "fp32")
    ),
]


def all_layouts() -> Iterator[dict]:
    """Every choice of CHOICES that the engine trains on up to 8 ranks."""
    for values in itertools.product(*CHOICES.values()):
        row = dict(zip(CHOICES, values))
        no_fp16_without_zero = not (row["zero"] == 0 and row["precision"] == "fp16")
        if no_fp16_without_zero and _case(row).ranks <= MOST_RANKS and goes_together(row):
            yield row


def cover() -> list[Case]:
    """Few layouts of up to 4 ranks in which every two choices meet that meet in any of them."""
    rows = [row for row in all_layouts() if _case(row).ranks <= MOST_RANKS_HERE]
    missing = set().union(*(_pairs(row) for row in rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(_pairs(row) & missing) / _case(row).ranks)
        missing -= _pairs(best)
        chosen.append(_case(best))
    return chosen


def _case(row: dict) -> Case:
    tp, sp = row["tensor"]
    return Case(tp=tp, sp=sp, **{key: value for key, value in row.items() if key != "tensor"})


def _pairs(row: dict) -> set:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


@pytest.mark.slow
def test_states_are_exact(forked, tmp_path):
    assert wrong_layouts(forked, tmp_path, [*cover(), *BESIDE]) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_states_of_all_layouts_are_exact(forked, tmp_path):
    assert wrong_layouts(forked, tmp_path, map(_case, all_layouts())) == []


def test_the_cover_meets_every_stage_and_cut():
    """Each choice that fits on 4 ranks is in a layout."""
    cases = cover()
    for kind, values in (("zero", (0, 1, 2, 3)), ("pp", (1, 2, 4)), ("dp", (1, 2, 4)), ("us", (1, 2, 4))):
        assert {getattr(case, kind) for case in cases} == set(values), kind
    assert {(case.tp, case.sp) for case in cases} >= {(2, False), (2, True), (4, True)}
    assert len(cases) < 60


def wrong_layouts(forked: ForkedRuns, root: Path, cases: Iterable[Case]) -> list[str]:
    """What the engine allocates in another size than the planner says, by layout, rank and part."""
    by_ranks: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_ranks[case.ranks].append(case)
    wrong = []
    for ranks, group in by_ranks.items():
        runs = {case.name: launch.make_run(root, case.overrides, case.name) for case in group}
        answer, first = root / f"states-{ranks}", runs[group[0].name].newest_job()
        ended = forked.server.run(
            ranks,
            "tests.planner.state_rank:main",
            [str(answer), *(str(run.path) for run in runs.values())],
            log=first.path / "logs" / "{rank}.0.log",
            environment={"NBTRAIN_DATA": str(forked.data_home), "NBTRAIN_JOB": first.job_id},
            sys_path=[launch.REPOSITORY],
            timeout_seconds=launch.TIMEOUT_SECONDS * max(1, len(group) / 40),
        )
        assert ended.succeeded, ended.last_words(40)
        for rank in range(ranks):
            measured = json.loads(Path(f"{answer}.{rank}").read_text())
            for case in group:
                planned = _planned(load_resolved(runs[case.name].config_yaml), rank)
                wrong += [
                    f"{case.name}, rank {rank}: {part} is {measured[case.name][part]:,}, planned {size:,}"
                    for part, size in planned.items()
                    if measured[case.name][part] != size
                ]
    return wrong


def _planned(config, rank: int) -> dict[str, int]:
    setup = setup_of(config)
    stage = stage_of(setup, rank * setup.pipeline_parallel_size // setup.world_size)
    found = states(setup, stage)
    # Autocast's copies of the matrices exist inside a forward pass only.
    cast = 2 * stage.matrices if setup.autocast else 0
    return {
        "weights": found.weights - cast,
        "gradients": found.gradients + found.host_gradients,
        "master_copy": found.master_copy,
        "optimizer": found.optimizer,
    }
