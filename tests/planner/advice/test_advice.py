"""Advice from a run's observations: the changes that are proposed, their order and text, and the YAML that
applies one.
"""

import re

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.planner.advice.advice import LEAST_GAIN, advise
from nbtrain.planner.advice.observations import Observations, OutOfMemory, needed_bytes, out_of_memory_of
from nbtrain.planner.memory import estimate_memory

GIB = 1 << 30
# The messages of torch 2.13.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 3.18 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.10 "
    "GiB is free. Including non-PyTorch memory, this process has 38.20 GiB memory in use. Of the allocated "
    "memory 34.30 GiB is allocated by PyTorch, and 2.90 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(autouse=True)
def examples(workspace, repository):
    (workspace / "examples").symlink_to(repository / "examples")


def seen(state="SUCCEEDED", **figures):
    return Observations(state, steps=1000, **figures)


def settings(advice):
    return [change.overrides for change in advice.changes]


def test_the_figures_of_torchs_message_are_read():
    found = out_of_memory_of(MESSAGE)
    assert found == OutOfMemory(int(3.18 * GIB), int(39.39 * GIB), int(34.3 * GIB), int(2.9 * GIB))
    assert out_of_memory_of("CUDA error: out of memory") == OutOfMemory()
    assert needed_bytes(seen(out_of_memory=found)) == int(34.3 * GIB) + int(3.18 * GIB)
    assert needed_bytes(seen(out_of_memory=OutOfMemory(), memory_bytes=5)) == 5


def test_after_running_out_of_memory_what_fits_comes_first_and_of_that_the_fastest():
    """After an out-of-memory error, the changes that fit come first, sorted by speed.

    Predictions are scaled by the memory that the run needed.
    """
    config = load("gpt-1-3b-8xdp", {"batch.micro_batch_size": 16})
    advice = advise(config, seen("FAILED", out_of_memory=out_of_memory_of(MESSAGE)))
    known = [change for change in advice.changes if change.memory_bytes is not None]
    fits = [change for change in known if change.fits]
    assert fits and [change.gain for change in fits] == sorted((one.gain for one in fits), reverse=True)
    assert known[: len(fits)] == fits
    assert {"batch.micro_batch_size": 8} in settings(advice) and {"parallel.zero_stage": 3} in settings(
        advice
    )
    assert all(change.memory_fraction <= 0.95 for change in fits)
    pieces = next(change for change in advice.changes if change.memory_bytes is None)
    assert pieces.overrides["backend.env"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert pieces.reason == "torch had reserved 7% of the device's memory in segments too small to use"
    assert pieces.effect == "not predicted by the plan"


@pytest.mark.parametrize(
    "env, expected",
    [
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:False", "A": "1"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True", "A": "1"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"},
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"},
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, None),
    ],
)
def test_the_allocators_other_settings_stay(env, expected):
    """Advice keeps the allocator's other settings. If segments are expandable already, there is no such
    advice.
    """
    config = load("gpt-1-3b-8xdp", {"batch.micro_batch_size": 16, "backend.env": env})
    found = settings(advise(config, seen("FAILED", out_of_memory=out_of_memory_of(MESSAGE))))
    changed = [one["backend.env"] for one in found if "backend.env" in one]
    assert changed == ([{**config.backend.env, **expected}] if expected else [])


def test_a_run_that_needed_more_than_planned_is_expected_to_again():
    """If a run needed twice its planned memory, the planned memory after each change is doubled too."""
    config = load("gpt-1-3b-8xdp", {"batch.micro_batch_size": 16})
    plain = advise(config, seen("FAILED", out_of_memory=OutOfMemory()))
    planned = {str(change.overrides): change.memory_bytes for change in plain.changes}
    twice = OutOfMemory(allocated_bytes=2 * estimate_memory(config).total_bytes)
    for change in advise(config, seen("FAILED", out_of_memory=twice)).changes:
        assert change.memory_bytes == pytest.approx(2 * planned[str(change.overrides)], rel=1e-6)


def test_waiting_for_data_asks_for_loader_workers():
    advice = advise(load("gpt-125m"), seen(data_fraction=0.2, cpus=16))
    (change,) = advice.changes
    assert change.overrides == {"data.num_workers": 4}
    assert change.reason == "ranks wait for data for 20% of a step, and each rank has 16 CPU cores"
    assert advise(load("gpt-125m"), seen(data_fraction=0.05, cpus=16)).changes == []


def test_waiting_for_stages_asks_for_more_micro_batches():
    advice = advise(load("gpt-13b-4xdp-8xpp"), seen(bubble_fraction=0.25))
    best = advice.changes[0]
    assert best.title == "Smaller micro batches" and best.gain > 0.1
    assert best.reason == "stages wait for other stages for 25% of a step, with 16 micro batches for 8 stages"
    gains = [change.gain for change in advice.changes]
    assert gains == sorted(gains, reverse=True) and min(gains) >= LEAST_GAIN
    doubled = next(one for one in advice.changes if "batch.global_batch_size" in one.overrides)
    # Twice the tokens, so the time per token counts.
    assert doubled.step_seconds > best.step_seconds and doubled.gain > 0


def test_free_memory_may_already_be_optimal():
    """Free memory alone is no reason for a change: gpt-125m uses 75 % of the memory, and no larger micro
    batch would be 2 % faster.
    """
    used = seen(memory_fraction=0.75, memory_bytes=30 * GIB, device_bytes=40 * GIB)
    advice = advise(load("gpt-125m"), used)
    assert advice.changes == []
    assert advice.notes[0].startswith("75% of the device's memory is used, which may already be optimal: ")
    assert "changes that would use more memory would save less than 2% of a step." in advice.notes[0]
    # Changes against something else, which help too little, say nothing about the memory.
    piped = load("gpt-13b-4xdp-4xpp", {"batch.global_batch_size": 16384})
    full = advise(piped, seen(memory_fraction=0.95, bubble_fraction=0.11))
    assert len(full.changes) == 1
    assert not any("may already be optimal" in note for note in full.notes)
    # The note does not deny the gain of changes that use more memory and are listed.
    roomy = advise(load("gpt-13b-4xdp-4xpp"), seen(memory_fraction=0.6, bubble_fraction=0.3))
    assert any(one.gain > 0.2 and one.memory_fraction > 1 for one in roomy.changes)
    assert [note.partition(" would save")[0] for note in roomy.notes] == [
        "2 other changes that would use more memory are not listed, because each"
    ]


def test_free_memory_is_used_if_recomputation_can_go():
    config = load("gpt-125m", {"parallel.activation_checkpointing.granularity": "full"})
    advice = advise(config, seen(memory_fraction=0.3))
    assert advice.changes[0].overrides == {"parallel.activation_checkpointing.granularity": "none"}
    assert advice.changes[0].gain > 0.1


def test_an_unstable_run_gets_calmer():
    """For an unstable run, the advice is to halve the learning rate, lengthen the warm-up, clip gradients,
    and use bf16 instead of fp16.
    """
    changes = {
        "lr_schedule.lr_warmup_tokens": 1_000_000,
        "optimizer.clip_grad": 5.0,
        "precision.dtype": "fp16",
    }
    config = load("gpt-125m", changes)
    found = settings(advise(config, seen("FAILED", unstable=True, smallest_loss_scale=True)))
    assert {"precision.dtype": "bf16"} in found and {"optimizer.clip_grad": 1.0} in found
    assert {"lr_schedule.lr": config.lr_schedule.lr / 2} in found
    # 100 steps are more than 1 % of this run.
    assert {"lr_schedule.lr_warmup_tokens": 100 * config.tokens_per_step} in found
    assert {"stability.on_nan": "rollback"} in found


def test_a_calmer_run_names_its_warm_up_once():
    """The advice for an unstable run sets the warm-up in tokens and the other units to null, and also halves
    Muon's learning rate.
    """
    changes = {"lr_schedule.lr_warmup_tokens": None, "lr_schedule.lr_warmup_steps": 10}
    config = load("gpt-125m", {**changes, "optimizer.type": "Muon", "optimizer.muon_lr": 0.02})
    found = settings(advise(config, seen("FAILED", unstable=True)))
    least = 100 * config.tokens_per_step
    assert {"lr_schedule.lr_warmup_tokens": least, "lr_schedule.lr_warmup_steps": None} in found
    assert {"lr_schedule.lr": config.lr_schedule.lr / 2, "optimizer.muon_lr": 0.01} in found


def test_an_unstable_run_is_not_told_to_warm_up_longer_twice():
    """A warm-up with which the plan finds no fault is not lengthened: 1 % of a long run, a tenth of a short
    one.
    """
    key = "lr_schedule.lr_warmup_tokens"
    for steps, enough in ((20_000, 200), (500, 50)):
        step = load("gpt-125m").tokens_per_step
        changes = {"batch.train_tokens": steps * step, key: enough * step}
        found = settings(advise(load("gpt-125m", changes), seen("FAILED", unstable=True)))
        assert all(key not in change for change in found)
        shorter = load("gpt-125m", {**changes, key: (enough - 1) * step})
        assert {key: enough * step} in settings(advise(shorter, seen("FAILED", unstable=True)))


def test_state_is_kept_on_the_device_without_settings_of_the_host():
    offload = {"device": "cpu", "pin_memory": True}
    config = load("gpt-125m", {"parallel.zero_stage": 2, "parallel.offload_optimizer": offload})
    found = settings(advise(config, seen(memory_fraction=0.3)))
    key = "parallel.offload_optimizer"
    assert {f"{key}.device": "none", f"{key}.pin_memory": False} in found


def test_a_hang_and_a_lack_of_host_memory():
    config = load("gpt-125m-2xdp", {"data.num_workers": 8, "checkpoint.async_save": True})
    hang = settings(advise(config, seen("FAILED", hang=True)))
    assert {"backend.debug": ["nccl"]} in hang
    host = settings(advise(config, seen("FAILED", out_of_host_memory=True)))
    assert {"data.num_workers": 4} in host and {"checkpoint.async_save": False} in host


def test_a_pipeline_may_offload_with_the_stage_that_it_allows():
    """A pipeline has no ZeRO 2: its optimizer state goes to the host with ZeRO 1."""
    config = load("gpt-13b-4xdp-4xpp")
    found = settings(advise(config, seen("FAILED", out_of_memory=out_of_memory_of(MESSAGE))))
    assert {"parallel.offload_optimizer.device": "cpu", "parallel.zero_stage": 1} in found


def test_nothing_seen_is_no_advice():
    advice = advise(load("gpt-125m"), seen())
    assert str(advice) == "Advice for gpt-125m: SUCCEEDED after 1,000 steps"


def test_a_failure_without_a_change_says_its_cause_and_where_to_look():
    config = load("gpt-125m", {"backend.env": {"TORCH_LOGS": "nonsense"}})
    notes = advise(config, Observations("FAILED", cause="exit code 1: ValueError: x")).notes
    assert notes[0].startswith("exit code 1: ValueError: x. There is no advice on the settings")
    assert "backend.env sets CUDA_DEVICE_MAX_CONNECTIONS, TORCH_LOGS for all ranks." in notes[1]


def test_a_run_without_a_step_names_what_comes_first():
    assert str(advise(load("gpt-125m"), Observations("NEW"))).splitlines()[-1] == (
        "note: The run has not recorded any step, but advice needs the records of a job. Run `nbtrain "
        "submit gpt-125m` to start a job, or `nbtrain plan gpt-125m` to see the planned memory and "
        "time."
    )


def test_the_table_names_settings_reason_and_effect():
    text = str(advise(load("gpt-125m"), seen(data_fraction=0.2, cpus=16, step_seconds=6.0)))
    assert text.splitlines() == [
        "Advice for gpt-125m: SUCCEEDED after 1,000 steps; 6 s per step, 20% of a step spent waiting for "
        "data",
        "",
        "1  More data workers: data.num_workers=4",
        "  why   ranks wait for data for 20% of a step, and each rank has 16 CPU cores",
        "  then  not predicted by the plan",
        "",
        "To write the run with change 1, run `nbtrain advise gpt-125m --use 1 -o new.yaml`.",
    ]


def test_a_wait_of_no_length_is_not_in_the_summary():
    advice = advise(load("gpt-125m"), seen(data_fraction=0.001, bubble_fraction=0.001, step_seconds=6.0))
    assert advice.title == "Advice for gpt-125m: SUCCEEDED after 1,000 steps; 6 s per step"


def test_the_command_of_the_advice_works_as_it_is(workspace, capsys):
    """A run takes its name from the file, and a name has no capitals: the command's own file is valid."""
    advice = advise(load("gpt-125m"), seen(data_fraction=0.2, cpus=16))
    named = re.search(r"-o (\S+)`", str(advice))[1]
    assert f'.use(1, "{named}")' in advice._repr_html_().replace("&quot;", '"')
    advice.use(1, workspace / named)
    assert load(workspace / named).data.num_workers == 4


def test_a_notebook_shows_a_table_and_the_lines_of_a_diff(workspace):
    """A notebook shows each change with its reason and effect, and the diff of a change as plain lines."""
    advice = advise(load("gpt-125m"), seen(data_fraction=0.2, cpus=16))
    page = advice._repr_html_()
    assert (
        page.count("<tr ") == 3 and "data.num_workers=4" in page and ".use(1, &quot;new.yaml&quot;)" in page
    )
    assert repr(advice.diff(1)).splitlines()[:2] == ["--- gpt-125m", "+++ changed"]


def test_using_a_change_writes_a_new_yaml_and_shows_the_diff(workspace):
    """Applying a change writes a new YAML that passes every rule and shows the diff; an existing file is
    never overwritten.
    """
    advice = advise(load("gpt-125m"), seen(data_fraction=0.2, cpus=16))
    path = workspace / "more-workers.yaml"
    before = load("gpt-125m").data.num_workers
    assert advice.use(1, path) == (
        f"--- gpt-125m\n+++ changed\n-data.num_workers: {before}\n+data.num_workers: 4"
    )
    assert load(path).data.num_workers == 4 and load(path).name == "more-workers"
    with pytest.raises(ConfigError, match=r"more-workers\.yaml already exists"):
        advice.use(1, path)
    with pytest.raises(
        ConfigError, match=r"^There is no change 2: the advice for gpt-125m has only change 1\.$"
    ):
        advice.use(2, workspace / "other.yaml")
    assert not (workspace / "other.yaml").exists()
