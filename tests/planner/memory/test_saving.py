"""How a run writes its checkpoints if it does not say: in the background if host memory holds the copy."""

import importlib

import pytest

from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes
from nbtrain.config.load import load
from nbtrain.planner.memory import estimate_if_fits, estimate_memory, saving, saving_here, saving_of
from nbtrain.planner.memory.estimate import COPY_ROOM_FRACTION, LOADER_BYTES, decided, estimate
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.setup import setup_of
from tests.planner.of_config import host_memory

GPU, CPU = "gpt-125m-4xdp", "gpt3-tiny"
RUNTIME = 434 * 2**20
NVME = {"parallel.zero_stage": 3, "parallel.offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}


def run(name: str = GPU, **overrides):
    return load(name, {key.replace("__", "."): value for key, value in overrides.items()}, check=False)


def with_memory(num_bytes: int | None, **overrides):
    return run(resources__memory_per_node_bytes=num_bytes, **overrides)


def least_bytes(**overrides) -> float:
    """Return the memory of a machine of GPU that just holds the copies of its ranks, counted by hand."""
    config = run(**overrides)
    copy = host_memory(run(**{**overrides, "checkpoint__async_save": True}), 0)["snapshot"]
    others = sum(host_memory(run(**{**overrides, "checkpoint__async_save": False}), 0).values())
    loaders = config.data.num_workers * LOADER_BYTES
    # A page-locked copy may take twice its bytes.
    return 4 * (others + 2 * copy + RUNTIME + loaders) / COPY_ROOM_FRACTION


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"data__num_workers": 8},
        {"parallel__zero_stage": 2, "parallel__offload_optimizer": {"device": "cpu"}},
    ],
)
def test_the_copies_of_all_ranks_must_fit_beside_everything_else(overrides):
    enough = int(least_bytes(**overrides)) + 8
    for num_bytes, fits in ((enough, True), (enough - 80, False)):
        memory = estimate_memory(with_memory(num_bytes, **overrides))
        assert memory.saves_in_background == fits
        assert (memory.host_parts["snapshot"] > 0) == fits
        # A run that fits only without the copy is not refused.
        assert memory.fits_host


def test_the_answer_and_its_reason():
    copy = 4 * host_memory(run(checkpoint__async_save=True), 0)["snapshot"] / 2**30
    for config, in_background, words in (
        (
            with_memory(64 * 2**30),
            True,
            f"checkpoints are written in the background: the {copy:.1f} GiB copy fits into 64.0 GiB of host "
            "memory",
        ),
        (
            with_memory(4 * 2**30),
            False,
            f"training waits while checkpoints are written: the {copy:.1f} GiB copy, which takes up to "
            f"{2 * copy:.1f} GiB when page-locked, does not fit into 90% of 4.0 GiB of host memory",
        ),
        (
            with_memory(None),
            False,
            "training waits while checkpoints are written: the amount of host memory per machine is not "
            "known; set resources.memory_per_node_bytes",
        ),
        (
            with_memory(4 * 2**40, **NVME),
            False,
            "training waits while checkpoints are written: state on NVMe is never complete in host memory, "
            "so it cannot be copied",
        ),
        (
            with_memory(4 * 2**40, checkpoint__async_save=False),
            False,
            "training waits while checkpoints are written: checkpoint.async_save is false",
        ),
        (
            with_memory(4 * 2**30, checkpoint__async_save=True),
            True,
            "checkpoints are written in the background: checkpoint.async_save is true",
        ),
        (with_memory(64 * 2**30, mode="perf"), False, ""),
        (with_memory(64 * 2**30, mode="eval"), False, ""),
    ):
        found = saving_of(config)
        assert (found.in_background, found.words) == (in_background, words)
        assert plan(config, use_measured=False).sections()["Disk"].get("saves", "") == words


def test_a_copy_that_is_asked_for_and_does_not_fit_is_a_shortage():
    assert estimate_memory(with_memory(2 * 2**30, checkpoint__async_save=True)).fits_host is False
    assert estimate_memory(with_memory(2 * 2**30)).fits_host is True


def test_host_memory_next_to_the_copy_is_named():
    offloaded = {"parallel__zero_stage": 2, "parallel__offload_optimizer": {"device": "cpu"}}
    words = saving_of(with_memory(4 * 2**30, **offloaded)).words
    assert words.endswith(" of host memory, where the run also needs 2.4 GiB")


def test_on_a_cpu_the_copy_shares_the_memory_of_the_model(monkeypatch):
    """The limit of a container counts, and a run that fits only without the copy still fits."""
    without = estimate_memory(run(CPU, checkpoint__async_save=False))
    copy = checkpoint_bytes(run(CPU))
    module = importlib.import_module("nbtrain.planner.memory.estimate")
    for room, fits in ((1.02, True), (0.98, False)):
        num_bytes = int(room * (without.total_bytes + copy) / COPY_ROOM_FRACTION)
        monkeypatch.setattr(module, "_this_machine_bytes", lambda found=num_bytes: found)
        memory = estimate_memory(run(CPU))
        assert memory.fits and memory.saves_in_background == fits
        assert memory.total_bytes > without.total_bytes if fits else memory.parts == without.parts


def test_another_machine_of_unknown_memory_gets_no_copy():
    slurm = run(CPU, backend={"kind": "slurm"})
    assert not saving_of(slurm).in_background
    assert saving_of(slurm).words.endswith("not known; set resources.memory_per_node_bytes")
    known = run(CPU, backend={"kind": "slurm"}, resources__memory_per_node_bytes=8 * 2**30)
    assert saving_of(known).in_background


def test_an_attempt_on_this_machine_counts_the_memory_that_is_here(monkeypatch):
    config = with_memory(64 * 2**30)
    monkeypatch.setattr(saving, "usable_memory_bytes", lambda: 4 * 2**30)
    assert saving_of(config).in_background
    here = saving_here(config)
    assert not here.in_background and "4.0 GiB of host memory" in here.words
    monkeypatch.setattr(saving, "usable_memory_bytes", lambda: 128 * 2**30)
    assert saving_here(config) == saving_of(config)
    # Without the setting, the start of a GPU run reads this machine's memory; a plan does not know it.
    assert not saving_of(with_memory(None)).in_background
    assert saving_here(with_memory(None)) == saving_of(with_memory(128 * 2**30))


def test_a_search_sees_the_same_memory():
    setup = setup_of(with_memory(64 * 2**30))
    assert setup.saves_in_background is None and decided(setup).saves_in_background
    assert estimate_if_fits(setup) == estimate(setup) == estimate(decided(setup))
