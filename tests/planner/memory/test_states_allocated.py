"""Planned model states equal the bytes that the engine allocates, exactly and on every rank.

Ranks are forked with DeepSpeed loaded. Each launch measures several layouts with one number of ranks, one
after the other (state_rank.py). By default, every ZeRO stage meets every other choice with at most two ranks
of a kind in at least one layout; `--soak` runs all layouts of up to 8 ranks.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.memory.states import states
from nbtrain.planner.setup.setup import setup_of
from nbtrain.proof.fork_client import ForkServer
from tests.parity.cases import Case
from tests.parity.pairwise import goes_together
from tests.train import launch

CHOICES = {
    "dp": (1, 2, 4, 8),
    "tensor": ((1, False), (2, False), (2, True), (4, False), (4, True), (8, True)),
    "pp": (1, 2, 4),
    "us": (1, 2, 4, 8),
    "zero": (0, 1, 2, 3),
    "precision": ("fp32", "bf16", "fp16", "autocast"),
}
MOST_RANKS, MOST_RANKS_HERE, MOST_OF_A_KIND_HERE = 8, 4, 2
# Every layout creates process groups, whose threads stay until the ranks end.
MOST_IN_LAUNCH = 4
ADAPTERS = {"lora.rank": 3, "init_from": "a-run"}
ROWS = {**ADAPTERS, "lora.trainable_token_indices": [3, 4, 499]}


def offloaded(**cases: tuple[tuple[int, str], ...]) -> list[Case]:
    """Return cases of two replicas for (ZeRO stage, what is offloaded), by precision."""
    return [
        Case(dp=2, zero=zero, offload=offload, precision=precision)
        for precision, choices in cases.items()
        for zero, offload in choices
    ]


# Choices that CHOICES lacks. BESIDE_HERE has each kind of state once; `--soak` measures both lists.
BESIDE_HERE = [
    # Four ranks of a kind.
    Case(dp=4, zero=3),
    Case(tp=4, sp=True),
    Case(pp=4),
    Case(us=4, zero=2),
    Case(dp=2, cp=2, zero=3),
    # hpZ's second copy exists only inside a step.
    Case(dp=4, zero=3, hpz=2, precision="bf16"),
    *offloaded(fp32=((2, "optimizer"), (3, "optimizer"), (3, "param"))),
    *offloaded(bf16=((1, "optimizer"), (2, "optimizer"), (3, "both"))),
    # Offloaded fp32 sums are stored per parameter: they depend on where the ranks' parts begin, and on the
    # parameters' bounds.
    Case(dp=2, tp=2, zero=2, offload="optimizer"),
    Case(dp=2, zero=2, offload="optimizer", extra={"batch.micro_batch_size": 8}, note="one-micro-batch"),
    # Other parameters: each ZeRO stage pads or shards them differently.
    *(Case(dp=2, zero=zero, model="all") for zero in (1, 2, 3)),
    *(Case(dp=2, zero=zero, optimizer="muon") for zero in (0, 2, 3)),
    Case(dp=2, zero=1, precision="bf16", model="llama", optimizer="muon"),
    # Frozen weights and a group of adapters; and rows of tokens, with an odd number of elements.
    Case(dp=2, extra=ADAPTERS, note="lora", zero=1, precision="bf16"),
    Case(dp=2, extra=ADAPTERS, note="lora", zero=3, model="llama"),
    Case(dp=2, extra=ROWS, note="rows", zero=0),
    Case(dp=2, extra=ROWS, note="rows", zero=2, model="llama"),
    Case(dp=2, extra=ROWS, note="rows", zero=3, precision="autocast"),
]
BESIDE = [
    Case(tp=4),
    Case(tp=2, cp=2, precision="bf16"),
    *offloaded(fp32=((1, "optimizer"), (3, "both"))),
    *offloaded(bf16=((3, "optimizer"), (3, "param"))),
    Case(dp=4, zero=2, offload="optimizer"),
    Case(dp=2, zero=2, offload="optimizer", precision="autocast"),
    Case(dp=2, tp=2, zero=1, offload="optimizer"),
    Case(dp=2, pp=2, zero=1, offload="optimizer"),
    Case(dp=2, us=2, zero=2, offload="optimizer"),
    Case(dp=2, zero=0, model="all"),
    Case(dp=2, tp=2, zero=2, offload="optimizer", model="all"),
    Case(pp=2, model="all", precision="bf16"),
    Case(dp=2, zero=1, optimizer="muon"),
    Case(dp=2, tp=2, zero=3, model="all", optimizer="muon"),
    *(
        Case(dp=2, extra=ADAPTERS, note="lora", **more)
        for more in ({"zero": 0}, {"zero": 2, "tp": 2}, {"zero": 1, "pp": 2})
    ),
    *(
        Case(dp=2, extra=ROWS, note="rows", **more)
        for more in (
            {"zero": 1, "pp": 2, "precision": "bf16"},
            {"zero": 2, "tp": 2, "model": "llama"},
            {"zero": 3, "model": "llama"},
        )
    ),
]


def all_layouts() -> Iterator[dict]:
    """Return all combinations of CHOICES that can be trained on up to 8 ranks."""
    for values in itertools.product(*CHOICES.values()):
        row = dict(zip(CHOICES, values))
        no_fp16_without_zero = not (row["zero"] == 0 and row["precision"] == "fp16")
        if no_fp16_without_zero and _case(row).ranks <= MOST_RANKS and goes_together(row):
            yield row


def cover() -> list[Case]:
    """Return a few layouts of up to 4 ranks, two of a kind, in which every ZeRO stage meets every choice that
    it meets in any such layout.
    """
    rows = [
        row
        for row in all_layouts()
        if _case(row).ranks <= MOST_RANKS_HERE
        and max(row["dp"], row["tensor"][0], row["pp"], row["us"]) <= MOST_OF_A_KIND_HERE
    ]
    missing = set().union(*(_pairs(row) for row in rows))
    chosen = []
    while missing:
        # Building an engine takes about as long as two further ranks of another.
        best = max(rows, key=lambda row: len(_pairs(row) & missing) / (2 + _case(row).ranks))
        missing -= _pairs(best)
        chosen.append(_case(best))
    return chosen


def _case(row: dict) -> Case:
    tp, sp = row["tensor"]
    return Case(tp=tp, sp=sp, **{key: value for key, value in row.items() if key != "tensor"})


def _pairs(row: dict) -> set:
    return {(row["zero"], choice) for choice in row.items()}


@pytest.mark.slow
def test_states_are_exact(fork_server, tmp_path):
    assert wrong_layouts(fork_server, tmp_path, [*cover(), *BESIDE_HERE]) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_states_of_all_layouts_are_exact(fork_server, tmp_path):
    cases = {case.name: case for case in (*map(_case, all_layouts()), *BESIDE_HERE, *BESIDE)}
    assert wrong_layouts(fork_server, tmp_path, cases.values()) == []


def test_the_cover_meets_every_stage_and_cut():
    """Every choice that is possible on 4 ranks occurs in one of these layouts."""
    cases = [*cover(), *BESIDE_HERE]
    for kind, values in (("zero", (0, 1, 2, 3)), ("pp", (1, 2, 4)), ("dp", (1, 2, 4)), ("us", (1, 2, 4))):
        assert {getattr(case, kind) for case in cases} == set(values), kind
    assert {(case.tp, case.sp) for case in cases} >= {(2, False), (2, True), (4, True)}
    assert {case.precision for case in cases} == set(CHOICES["precision"])
    assert len(cases) < 50


def test_the_fullest_rank_is_planned(tmp_path):
    """The plan uses the rank that needs the most: 65,536 bytes of offloaded fp32 gradient sums are on both
    ranks, because both shards include a part of these parameters.
    """
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    setup = setup_of(_config(source, Case(dp=2, zero=2, offload="optimizer")))
    stage = stage_of(setup, 0)
    sums = [states(setup, stage, rank).gradients for rank in (0, 1)]
    assert (sums, 4 * stage.elements) == ([271_872, 331_264], 271_872 + 331_264 - 65_536)
    assert states(setup, stage).gradients == 331_264


def wrong_layouts(server: ForkServer, root: Path, cases: Iterable[Case]) -> list[str]:
    """Run the layouts and return a message for each rank and part where the engine allocates another size
    than planned.
    """
    by_ranks: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_ranks[case.ranks].append(case)
    source = root / "tiny.yaml"
    source.write_text(launch.TINY)
    wrong = []
    launches = [(ranks, part) for ranks, group in by_ranks.items() for part in batched(group, MOST_IN_LAUNCH)]
    for number, (ranks, part) in enumerate(launches):
        configs = [_config(source, case) for case in part]
        # JSON, as every rank would take longer to read YAML than to run its step.
        answer, runs = root / f"states-{number}", root / f"runs-{number}.json"
        runs.write_text("\n".join(config.model_dump_json() for config in configs))
        ended = server.run(
            ranks,
            "tests.planner.memory.state_rank:main",
            [str(answer), str(runs)],
            log=root / f"{number}.{{rank}}.log",
            sys_path=[launch.REPOSITORY],
            timeout_seconds=launch.TIMEOUT_SECONDS,
        )
        assert ended.succeeded, ended.last_output(40)
        for rank in range(ranks):
            measured = json.loads(Path(f"{answer}.{rank}").read_text())
            wrong += [
                f"{config.name}, rank {rank}: {part} is {measured[config.name][part]:,}, planned {size:,}"
                for config in configs
                for part, size in _planned(config, rank).items()
                if measured[config.name][part] != size
            ]
    return wrong


def batched(cases: list[Case], size: int) -> Iterator[list[Case]]:
    """Split the cases into batches of `size`."""
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


def _config(source: Path, case: Case) -> RunConfig:
    """Return the run of a case, with the fewest layers with which its stages differ."""
    return load(str(source), {"name": case.name, **case.overrides, "model.num_layers": case.pp + 1})


def _planned(config: RunConfig, rank: int) -> dict[str, int]:
    setup = setup_of(config)
    stage = stage_of(setup, rank * setup.pipeline_parallel_size // setup.world_size)
    place = rank // setup.tensor_parallel_size % setup.zero_size
    found = states(setup, stage, place)
    # Autocast's copies of the matrices exist only inside a forward pass.
    copied = stage.matrices - (stage.blocks if setup.load_in_4bit else 0)
    cast = 2 * (copied + stage.layers * sum(setup.adapter_sizes)) if setup.autocast else 0
    return {
        "weights": found.weights - cast,
        "gradients": found.gradients + found.host_gradients,
        "master_copy": found.master_copy,
        "optimizer": found.optimizer,
    }
