"""Comparing runs: the settings that differ, the metrics of each run, and requests that are rejected."""

import os
import time
from dataclasses import replace

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.evaluation_files import Estimate, EvaluationRecord
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    DevicePrice,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Provenance,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.config.load import load, to_yaml
from nbtrain.monitor.runs.compare import MOST_RUNS, MOST_TABULATED, compared
from nbtrain.monitor.runs.compare_picture import BEST, comparison_figure, comparison_report
from nbtrain.monitor.runs.published import Published
from tests.jobs.conftest import TINY


def give_price(run, plan):
    """Give the run's job the price of a plan."""
    job = run.newest_job()
    record = JobRecord.read(job.job_json)
    record.price = DevicePrice.of_plan(plan)
    record.write(job.job_json)


def made(folder, name, overrides, attempts, **progress):
    """Create a finished run that had one attempt for each (ranks, seconds) pair."""
    (folder / "tiny.yaml").write_text(TINY)
    run, began = RunDir.named(name), time.time() - 10_000
    job = run.job(new_job_id(began))
    job.make_folders()
    config = load(folder / "tiny.yaml", {"name": name, **overrides})
    run.config_yaml.write_text(to_yaml(config))
    record = JobRecord(job.job_id, name, name, "SUCCEEDED", began, attempts[-1][0], "done")
    started = began
    for number, (ranks, seconds) in enumerate(attempts):
        end = started + 5 + seconds
        record.attempts.append(
            AttemptRecord(number, started, ranks, ranks, running_at=started + 5, ended_at=end)
        )
        started = end
    record.ended_at, record.labels = record.attempts[-1].ended_at, config.all_labels
    record.write(job.job_json)
    alive = ProcessIdentity.of(1)
    said = TrainingProgress(20, 2560, 2560, **progress)
    Heartbeat(0, len(attempts) - 1, alive, began, 20, "end", began, said).write(job.heartbeat(0))
    return run


def test_what_differs_and_what_came_of_it(workspace):
    """Settings that are equal in all runs are omitted. Device hours add up each attempt with the number of
    ranks it had.
    """
    one = made(workspace, "one", {}, [(2, 3600), (1, 1800)], loss=2.5, validation_loss=2.0)
    # The newest step's value, and the mean of the last 100 steps; one sample has 128 tokens.
    speed = {"tokens_per_second": 9.0, "samples_per_second": 10.0, "consumed_samples": 20}
    two = made(workspace, "two", {"lr_schedule.lr": 0.01}, [(1, 90)], loss=2.25, **speed)
    found = compared([one, two])
    assert found["names"] == ["one", "two"] and not found["active"]
    [row] = found["settings"]["rows"]
    assert row[0] == "lr_schedule.lr" and row[2] == "0.01" and row[1] != "0.01"
    figures = {row[0]: row[1:] for row in found["figures"]["rows"]}
    assert figures["loss"] == ["2.5000", "2.2500"]
    assert figures["validation perplexity"] == ["7.39", "\N{EN DASH}"]
    assert figures["tokens/s, mean of 100 steps"] == ["\N{EN DASH}", "1,280"]
    assert figures["samples/s, mean of 100 steps"] == ["\N{EN DASH}", "10.0"]
    assert figures["steps"] == ["20 / 20", "20 / 20"]
    assert figures["CPU process hours"] == ["2.5", "0.0264"]
    assert figures["training time"] == ["1 h 30 min", "1 min 30 s"]
    assert "test loss" not in figures
    assert ["batch.global_batch_size", "8"] in found["settings"]["same"]
    numbers = {
        row[0]: [*more]
        for row, *more in zip(*(found["figures"][key] for key in ("rows", "values", "better")))
    }
    assert numbers["loss"] == [[2.5, 2.25], "low"]
    assert numbers["tokens/s, mean of 100 steps"] == [[None, 1280.0], "high"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(99.5 * 3600, "99.5"), (168 * 3600, "168"), (1344 * 3600, "1,344")]
)
def test_many_hours_are_shown_in_full(workspace, seconds, words):
    """From 100 hours on, hours are a whole number, never in exponent notation."""
    runs = [made(workspace, name, {}, [(1, seconds)], loss=2.5) for name in ("one", "two")]
    figures = {row[0]: row[1:] for row in compared(runs)["figures"]["rows"]}
    assert figures["CPU process hours"] == [words] * 2


def test_a_lost_job_trained_until_its_last_sign_of_life(workspace):
    """The hours of a lost job end at its last heartbeat, also if the run was resumed later."""
    one, two = (made(workspace, name, {}, [(2, 60)], loss=2.5) for name in ("one", "two"))
    job = one.newest_job()
    record = JobRecord.read(job.job_json)
    record.state, record.ended_at, record.attempts[0].ended_at = "RUNNING", None, None
    record.supervisor = replace(ProcessIdentity.of(os.getpid()), start_ticks=1)  # of another process
    record.write(job.job_json)
    beat = Heartbeat.read(job.heartbeat(0))
    replace(beat, time=record.attempts[0].running_at + 1800).write(job.heartbeat(0))
    os.utime(job.job_json, (job.heartbeat(0).stat().st_mtime,) * 2)
    figures = {row[0]: row[1:] for row in compared([one, two])["figures"]["rows"]}
    assert figures["state"][0] == "LOST"
    assert (figures["training time"][0], figures["CPU process hours"][0]) == ("30 min 0 s", "1")
    later = one.job(new_job_id(time.time()))
    later.make_folders()
    resumed = JobRecord(later.job_id, "one", "one", "CANCELLED", time.time(), 2, "stopped")
    resumed.write(later.job_json)
    figures = {row[0]: row[1:] for row in compared([one, two])["figures"]["rows"]}
    assert (figures["state"][0], figures["training time"][0]) == ("CANCELLED", "30 min 0 s")


def test_a_loss_of_pairs_has_no_perplexity(workspace):
    """No perplexity is computed from the loss of preference pairs. If only one run has a section, the keys of
    the section are listed.
    """
    pairs = {"dpo": {"beta": 0.2}, "init_from": "base", "data.packing": "best_fit"}
    sources = [{"kind": "preference", "path": "pairs.jsonl"}]
    losses = {"validation_loss": 0.5, "validation_losses": {"wiki": 0.5}}
    one, two = (made(workspace, name, {}, [(1, 60)], **losses) for name in ("one", "two"))
    config = load(workspace / "tiny.yaml", {"name": "two", **pairs, "data.sources": sources}, check=False)
    two.config_yaml.write_text(to_yaml(config))
    found = compared([one, two])
    figures = {row[0]: row[1:] for row in found["figures"]["rows"]}
    assert figures["validation perplexity"] == ["1.65", "\N{EN DASH}"]
    assert figures["validation perplexity, wiki"] == ["1.65", "\N{EN DASH}"]
    settings = {row[0]: row[1:] for row in found["settings"]["rows"]}
    assert settings["dpo.beta"] == ["\N{EN DASH}", "0.2"] and "dpo" not in settings


def test_a_perplexity_is_that_of_the_loss_however_large(workspace):
    """The perplexities of two diverged runs differ as their losses do; one too large for a float is a
    dash.
    """
    runs = [
        made(workspace, name, {}, [(1, 60)], validation_loss=loss)
        for name, loss in (("one", 21.0), ("two", 22.0), ("three", 800.0))
    ]
    figures = {row[0]: row[1:] for row in compared(runs)["figures"]["rows"]}
    assert figures["validation perplexity"] == ["1,318,815,734.48", "3,584,912,846.13", "\N{EN DASH}"]


def test_evaluations_stand_below_the_figures(workspace):
    """Evaluation results come from the newest evaluated step of each run; a missing or damaged result is
    shown as a dash.
    """
    one, two = (made(workspace, name, {}, [(1, 60)], loss=2.5) for name in ("one", "two"))
    for step, value in ((10, 0.5), (20, 0.25)):
        record = evaluated("hellaswag", step, {"acc": Estimate(value, 0.0123)}, limit=100)
        record.write(one)
    evaluated("perplexity-other-all", 10, {"loss": Estimate(1.0, None)}).write(two)
    rows = compared([one, two])["figures"]["rows"]
    assert rows[-2:] == [
        ["hellaswag: acc", "0.25 ± 0.012 (step 20, first 100)", "\N{EN DASH}"],
        ["perplexity-other-all: loss", "\N{EN DASH}", "1 (step 10)"],
    ]
    (two.evaluation / "global_step10" / "perplexity-other-all.json").write_text("{")
    assert [row[0] for row in compared([one, two])["figures"]["rows"][-1:]] == ["hellaswag: acc"]


def evaluated(name, step, metrics, limit=None):
    counts = {"examples": 100}
    return EvaluationRecord(
        name, "lambada", step, "fp32", "file", "0" * 64, None, limit, counts, metrics, {}, 1.0, 2.0, "0.1.0"
    )


def test_a_run_whose_configuration_is_damaged_is_compared_by_its_figures(workspace):
    one = made(workspace, "one", {}, [(1, 60)], loss=2.5)
    two = made(workspace, "two", {"lr_schedule.lr": 0.01}, [(1, 60)], loss=2.25)
    two.config_yaml.write_text("model: [")
    found = compared([one, two])
    assert found["settings"]["rows"] == []
    assert ["loss", "2.5000", "2.2500"] in found["figures"]["rows"]


def test_a_run_with_a_damaged_record_does_not_hide_the_others(workspace):
    one, two = (made(workspace, name, {}, [(1, 60)], loss=2.5) for name in ("one", "two"))
    two.newest_job().job_json.write_text("{")
    figures = {row[0]: row[1:] for row in compared([one, two])["figures"]["rows"]}
    assert figures["state"] == ["SUCCEEDED", "DAMAGED"] and figures["loss"][0] == "2.5000"


def test_money_and_energy_follow_the_devices_that_ran(workspace):
    """Cost and energy combine the device's price from the plan with the hours that the attempts ran."""
    on_gpu = {"resources.device": "gpu", "resources.gpu_type": "A100-SXM4-40GB", "precision.dtype": "bf16"}
    runs = [made(workspace, name, on_gpu, [(2, 3600)], loss=2.5) for name in ("one", "two")]
    cost = {"device_hours": 10.0, "energy_kwh": 5.0, "price": {"usual": 1.5, "currency": "USD"}}
    give_price(runs[0], {"cost": cost})
    found = compared(runs)
    figures = {row[0]: row[1:] for row in found["figures"]["rows"]}
    assert figures["GPU hours"] == ["2", "2"]
    assert figures["cost, USD"] == ["3.00", "\N{EN DASH}"]
    assert figures["energy"] == ["about 1 kWh", "\N{EN DASH}"]
    scale = found["scales"]["one"]
    assert scale["money_per_second"] == pytest.approx(3.0 / 3600)


def test_the_mfu_is_of_the_device_that_computed(workspace):
    """MFU divides by the peak of the GPU that an attempt's provenance names, whatever resources.gpu_type
    says; a CPU has none, and neither has an attempt that did not reach training.
    """
    speed = {"samples_per_second": 1000.0, "consumed_samples": 20}
    on_gpu = {"resources.device": "gpu", "resources.gpu_type": "A100-SXM4-40GB", "precision.dtype": "bf16"}
    ran_on = {
        "of another type": (on_gpu, {"kind": "gpu", "name": "NVIDIA H100 80GB HBM3"}),
        "untyped": (on_gpu | {"resources.gpu_type": None}, {"kind": "gpu", "name": "NVIDIA A100-SXM4-40GB"}),
        "cpu": ({"precision.dtype": "bf16"}, {"kind": "cpu", "name": "AVX512", "threads": 2}),
        "untrained": (on_gpu, None),
    }
    runs = []
    for number, (overrides, device) in enumerate(ran_on.values()):
        runs.append(made(workspace, f"run-{number}", overrides, [(2, 3600), (2, 60)], **speed))
        if device is not None:
            # The second attempt failed before its first step.
            path = (job := runs[-1].newest_job()).provenance(0)
            path.parent.mkdir()
            Provenance(job.job_id, 0, 0, {}, "", {}, device, {}, {}, {}).write(path)
    found = compared(runs)
    flops = 1000.0 * 128 * found["scales"]["run-0"]["flops_per_token"] / 2
    at = [row[0] for row in found["figures"]["rows"]].index("MFU, mean of 100 steps")
    h100, a100, *others = found["figures"]["values"][at]
    assert (h100, a100) == (pytest.approx(flops / 989.5e12), pytest.approx(flops / 312e12))
    assert others == [None, None]


def test_curves_over_cost_count_every_device_that_is_paid(workspace):
    """If machines have more GPUs than ranks, curves and table count all of them. Only the table counts the
    five seconds of the start.
    """
    on_gpu = {"resources.device": "gpu", "resources.gpu_type": "A100-SXM4-40GB", "precision.dtype": "bf16"}
    runs = [made(workspace, name, on_gpu, [(2, 3600)], loss=2.5) for name in ("one", "two")]
    cost = {"device_hours": 4.0, "price": {"usual": 1.5, "currency": "USD"}}
    plan = {"world_size": 2, "duration": {"seconds": 3600.0}, "cost": cost}
    give_price(runs[0], plan)
    found = compared(runs)
    assert {row[0]: row[1] for row in found["figures"]["rows"]}["cost, USD"] == "6.01"
    assert found["scales"]["one"]["money_per_second"] == pytest.approx(6.0 / 3600)


@pytest.mark.slow
def test_many_runs_are_one_table_with_a_row_each(workspace):
    """More runs than a screen has curves for are one table of what differs, and no picture."""
    names = [f"run-{number:02}" for number in range(MOST_RUNS + 1)]
    runs = [
        made(
            workspace,
            name,
            {"lr_schedule.lr": 0.01 + number / 1000, "labels.sweep": "s"},
            [(1, 60)],
            loss=2.5,
        )
        for number, name in enumerate(names)
    ]
    for number, run in enumerate(runs[:2]):
        beat = Heartbeat.read(run.newest_job().heartbeat(0))
        beat.progress.loss = 2.0 + number / 10
        beat.write(run.newest_job().heartbeat(0))
    found = compared(runs)
    assert found["sweep"] == "s" and compared(runs[:2])["sweep"] == "s"
    text = str(comparison_report(runs, found))
    heads, *rows = [line.split() for line in text.splitlines()[1:]]
    assert heads == ["run", "lr_schedule.lr", "loss"]
    assert rows[0] == ["run-00", "0.01", "2.0000", BEST.strip()] and rows[2] == ["run-02", "0.012", "2.5000"]
    assert [row[0] for row in rows[: len(names)]] == names
    published = Published("345M", "others.yaml:1", {"loss": 1.5}, {"loss": "others.yaml:2"})
    text = str(comparison_report(runs, compared(runs, [published])))
    lines = [line.split() for line in text.splitlines()]
    assert ["345M", "1.5000", BEST.strip()] in lines and ["run-00", "0.01", "2.0000"] in lines
    with pytest.raises(ConfigError, match="13 runs are too many: a picture shows at most 12"):
        comparison_figure(runs)


def test_what_is_refused(workspace):
    one, two = RunDir.named("one"), RunDir.named("two")
    for runs, words in (
        ([one], "cannot compare 1 run: choose 2 to 500 runs."),
        ([one] * (MOST_TABULATED + 1), "cannot compare 501 runs: choose 2 to 500 runs."),
        ([one, two, one], "one: named more than once; name each run only once."),
        (
            [one, RunDir(two.path.parent / "old" / "one")],
            "one: runs in several folders have the same name, and a comparison identifies runs by name. "
            "Rename one of the folders.",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            compared(runs)
        assert str(refused.value) == words


def test_the_validation_of_each_dataset_is_compared(workspace):
    """Each validation dataset that either run has gets a row, with a dash for a run without it."""
    one = made(workspace, "one", {}, [(1, 60)], validation_losses={"wiki": 2.0, "code": 1.0})
    two = made(workspace, "two", {}, [(1, 60)], validation_losses={"wiki": 2.5, "code": float("nan")})
    figures = {row[0]: row[1:] for row in compared([one, two])["figures"]["rows"]}
    assert figures["validation loss, wiki"] == ["2.0000", "2.5000"]
    assert figures["validation perplexity, wiki"] == ["7.39", "12.18"]
    assert figures["validation loss, code"] == ["1.0000", "\N{EN DASH}"]
