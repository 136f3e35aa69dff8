"""summary.json of jobs that ended early."""

import math
import os
import time

from nbtrain.base import files
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.jobs.supervisor.summary import write_summary


def test_the_checkpoint_is_the_one_on_the_disk(tmp_path):
    """The summary names the newest complete checkpoint on disk: step 40, because the checkpoint of step 44 is
    damaged.
    """
    run, config = RunDir(tmp_path / "run"), load("gpt-tiny")
    for step, size in ((40, 1), (44, 2)):
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "state").write_bytes(b"x")
        manifest = {"schema_version": 2, "files": {"state": {"bytes": size, "sha256": "0"}}}
        files.write_json(run.checkpoint_manifest(step), manifest)
    record = JobRecord(
        "20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 1, "step 42: the loss is nan", ended_at=1.0
    )
    me = ProcessIdentity.of(os.getpid())
    beat = Heartbeat(0, 0, me, time.time(), 41, "train", 0.0, TrainingProgress(800, 3_276_800))
    summary = write_summary(run, config, record, beat)
    assert (summary["steps"], summary["checkpoint_step"]) == (41, 40)
    assert files.read_json(run.summary_json) == summary


def test_overflow_steps_are_those_of_the_run(tmp_path):
    """If a job fails before its first step, the summary keeps the number of skipped overflow steps of the
    previous job.
    """
    run, config = RunDir(tmp_path / "run"), load("gpt-tiny")
    run.path.mkdir()
    record = JobRecord("20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 1, "why", ended_at=1.0)
    me = ProcessIdentity.of(os.getpid())
    overflow_steps = []
    for count in (None, 3, None):
        progress = TrainingProgress(800, 3_276_800, overflow_steps=count)
        beat = Heartbeat(0, 0, me, time.time(), 41, "train", 0.0, progress)
        overflow_steps.append(write_summary(run, config, record, beat)["overflow_steps"])
    assert overflow_steps == [None, 3, 3]


def test_a_rate_keeps_what_it_was_measured_with(tmp_path):
    """A throughput is stored with the setup in which it was measured, also in the summary of a later job that
    measured nothing.
    """
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    record = JobRecord("20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 1, "why", ended_at=1.0)
    me = ProcessIdentity.of(os.getpid())
    layers = []
    for config, rate in ((load("gpt-tiny"), 50.0), (load("gpt-tiny", ["model.num_layers=2"]), None)):
        progress = TrainingProgress(800, 3_276_800, samples_per_second=rate)
        beat = Heartbeat(0, 0, me, time.time(), 41, "train", 0.0, progress)
        write_summary(run, config, record, beat)
        summary = files.read_json(run.summary_json)
        layers.append(
            (summary["samples_per_second"], summary["measured_with"]["setup"]["shape"]["num_layers"])
        )
    assert layers == [(50.0, load("gpt-tiny").model.num_layers)] * 2


def test_a_rate_of_a_resized_attempt_is_not_that_of_the_full_size(tmp_path):
    """A throughput is recorded with the number of replicas of the attempt that measured it. backend.elastic
    may have changed the number, and a later attempt may have made no step.
    """
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    config, me = (
        load("gpt-tiny", ["parallel.data_parallel_size=4"], check=False),
        ProcessIdentity.of(os.getpid()),
    )
    record = JobRecord("20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 2, "why", ended_at=1.0)
    record.attempts = [AttemptRecord(number, 0.0, size, size) for number, size in enumerate((4, 2, 1))]
    progress, sizes = TrainingProgress(800, 3_276_800, samples_per_second=50.0), []
    for attempt in (0, 1):
        beat = Heartbeat(0, attempt, me, time.time(), 41, "train", 0.0, progress)
        setup = write_summary(run, config, record, beat)["measured_with"]["setup"]
        sizes.append(setup["data_parallel_size"])
    assert sizes == [4, 2]


def test_peak_memory_and_the_wait_for_other_stages_are_kept(tmp_path):
    """Peak memory and pipeline idle time, with which plans are compared, are kept if a job measured
    nothing.
    """
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    config, me = load("gpt-tiny"), ProcessIdentity.of(os.getpid())
    record = JobRecord("20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 1, "why", ended_at=1.0)
    for memory, fraction in ((2 << 30, 0.25), (None, None)):
        progress = TrainingProgress(800, 3_276_800, memory_bytes=memory, pipeline_fraction=fraction)
        beat = Heartbeat(0, 0, me, time.time(), 41, "train", 0.0, progress)
        write_summary(run, config, record, beat)
        summary = files.read_json(run.summary_json)
        assert (summary["memory_bytes"], summary["pipeline_fraction"]) == (2 << 30, 0.25)


def test_the_validation_of_each_dataset_is_in_the_summary(tmp_path):
    """If a job ends before its first validation, the loss and perplexity of each validation dataset are kept
    from before.
    """
    run, config = RunDir(tmp_path / "run"), load("gpt-tiny")
    run.path.mkdir()
    record = JobRecord("20261121-031500-a1b2", "id", "run", "FAILED", 0.0, 1, "why", ended_at=1.0)
    me = ProcessIdentity.of(os.getpid())
    found = []
    for losses in ({}, {"wiki": 0.0, "code": 1e6}, {}):
        progress = TrainingProgress(800, 3_276_800, validation_losses=losses)
        beat = Heartbeat(0, 0, me, time.time(), 41, "train", 0.0, progress)
        found.append(write_summary(run, config, record, beat)["last_validation_by_dataset"])
    both = {"wiki": {"loss": 0.0, "perplexity": 1.0}, "code": {"loss": 1e6, "perplexity": None}}
    assert found == [{}, both, both]


def test_a_loss_of_pairs_has_no_perplexity_in_the_summary(tmp_path):
    """The loss of a run with dpo is over pairs of answers, not over tokens; its summary has no perplexity."""
    me, found = ProcessIdentity.of(os.getpid()), {}
    losses = {"validation_loss": 0.5, "best_validation_loss": 0.25, "test_loss": 0.75}
    for name, overrides in (("tokens", {}), ("pairs", {"dpo": {"beta": 0.2}})):
        run = RunDir(tmp_path / name)
        run.path.mkdir()
        record = JobRecord("20261121-031500-a1b2", "id", name, "SUCCEEDED", 0.0, 1, ended_at=1.0)
        progress = TrainingProgress(800, 3_276_800, **losses, validation_losses={"wiki": 0.5})
        beat = Heartbeat(0, 0, me, time.time(), 800, "end", 0.0, progress)
        summary = write_summary(run, load("gpt-tiny", overrides, check=False), record, beat)
        named = ("last_validation_perplexity", "best_validation_perplexity", "test_perplexity")
        found[name] = [
            *(summary[key] for key in named),
            summary["last_validation_by_dataset"]["wiki"]["perplexity"],
        ]
    assert found["tokens"] == [math.exp(0.5), math.exp(0.25), math.exp(0.75), math.exp(0.5)]
    assert found["pairs"] == [None] * 4
