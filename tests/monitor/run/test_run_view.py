"""The view of a run: states, progress, curves, ranks, and a snapshot of everything as one JSON object."""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    ExitRecord,
    Heartbeat,
    ProcessIdentity,
    ResumeCertificate,
)
from nbtrain.base.run_directory.rundir import NOT_USED, RunDir
from nbtrain.monitor.job.conditions import NUM_EVENTS, in_sight
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.metrics.curves import Band, band
from nbtrain.monitor.metrics.finite_json import encoded, finite
from nbtrain.monitor.metrics.series import Gaps
from nbtrain.monitor.run import run_view
from nbtrain.monitor.run.metrics_range import CurvesRequest, metrics
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.run.status_text import progress_line, resume_report, status_report
from nbtrain.monitor.status.status_records import read_status
from tests.lab.widgets.fake_run import TOKENS_PER_STEP, FakeJob

KEYS = (
    "schema_version name run_id state meaning cause active queued failed asked time job advice remedies "
    "cost waiting nan jobs marks config progress prediction curves reading resources ranks failed_rank log "
    "events alerts warnings shown"
)
"""Keys of a description, in order."""


@pytest.fixture(autouse=True)
def fresh_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "DESCRIPTION_AGE_SECONDS", -1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "gpt-fake")


def test_snapshot_of_a_running_job(run: RunDir) -> None:
    """A snapshot is one JSON object with the state, job, progress, curves, resources, ranks, log and
    events.
    """
    job = FakeJob(run, steps=40, world_size=2)
    for _ in range(20):
        job.one_step()
    job.events.write("alert", "host memory 91 % is over max_host_memory_fraction = 90 %")
    view = RunView(run)
    snapshot = view.describe().to_dict()
    assert list(snapshot) == KEYS.split()
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot
    assert (snapshot["state"], snapshot["active"], snapshot["cause"]) == ("RUNNING", True, None)
    assert snapshot["run_id"] == run.record()["run_id"]
    assert snapshot["job"]["job_id"] == job.job.job_id
    assert snapshot["config"]["data_parallel_size"] == 2
    progress = snapshot["progress"]
    assert (progress["step"], progress["total_steps"]) == (20, 40)
    assert progress["fraction"] == 0.5
    assert progress["consumed_tokens"] == 20 * TOKENS_PER_STEP
    assert progress["eta_seconds"] > 0
    assert progress["validation_perplexity"] == pytest.approx(math.exp(progress["validation_loss"]))
    assert snapshot["curves"]["loss"]["steps"] == list(range(1, 21))
    assert snapshot["curves"]["validation_loss"]["steps"] == [10, 20]
    assert snapshot["curves"]["learning_rate"]["values"][-1] == pytest.approx(5.5e-4, rel=1e-5)
    assert [(rank["rank"], rank["phase"], rank["step"]) for rank in snapshot["ranks"]] == [
        (0, "Running", 20),
        (1, "Running", 20),
    ]
    assert snapshot["ranks"][0]["memory_bytes"] > 0
    assert snapshot["resources"]["job"]["num_processes"] >= 1
    assert snapshot["log"]["source"] == "rank 0"
    assert snapshot["log"]["lines"][-1].startswith("step    20 | tokens 20.5k | loss ")
    assert [alert["message"] for alert in snapshot["alerts"]] == [
        "host memory 91 % is over max_host_memory_fraction = 90 %"
    ]
    job.tensorboard.close()


def test_what_is_weighty_stays_in_sight(run: RunDir) -> None:
    """A restart and its cause are still in the snapshot and in `status` after a hundred later alerts."""
    job = FakeJob(run, steps=10)
    job.events.write("error", "rank 1 was killed; 2 steps are lost")
    job.events.write("restart", "attempt 0 failed: rank 1 was killed; the next one starts in 5 s")
    for step in range(100):
        job.events.write("alert", f"step {step}: communication is above 30%")
    view = RunView(run)
    messages = [event["message"] for event in view.describe().to_dict()["events"]]
    assert len(messages) == NUM_EVENTS
    assert [text.split(":")[0] for text in messages[:3]] == [
        "rank 1 was killed; 2 steps are lost",
        "attempt 0 failed",
        "step 42",
    ]
    lines = str(status_report(run)).partition("Last events\n")[2].splitlines()[1:]
    assert [line.split(maxsplit=2)[2].split(":")[0] for line in lines] == [
        "rank 1 was killed; 2 steps are lost",
        "attempt 0 failed",
        *(f"step {step}" for step in range(94, 100)),
    ]
    job.tensorboard.close()


def test_weighty_events_take_half_the_room_at_most() -> None:
    events = [{"kind": kind, "number": number} for number, kind in enumerate(["restart"] * 9 + ["phase"] * 9)]
    assert [event["number"] for event in in_sight(events, 8)] == [5, 6, 7, 8, 14, 15, 16, 17]
    assert in_sight(events[:3], 8) == events[:3]
    assert in_sight(events[8:], 8) == [events[8], *events[-7:]]


def test_later_snapshots_follow_the_run(run: RunDir) -> None:
    """Later snapshots contain the new steps and, at the end, its cause; processes that have ended have no
    metrics.
    """
    job = FakeJob(run, steps=10)
    job.one_step()
    view = RunView(run)
    assert view.describe().to_dict()["progress"]["step"] == 1
    for _ in range(9):
        job.one_step()
    job.finish("SUCCEEDED", "all 10,240 tokens are done and saved")
    snapshot = view.describe().to_dict()
    assert (snapshot["state"], snapshot["cause"]) == ("SUCCEEDED", "all 10,240 tokens are done and saved")
    assert snapshot["progress"]["fraction"] == 1.0
    assert snapshot["progress"]["eta_seconds"] is None
    assert snapshot["curves"]["loss"]["num_points"] == 10
    assert snapshot["resources"] is None
    assert snapshot["ranks"][0]["phase"] == "Succeeded"
    assert view.state == "SUCCEEDED"
    assert not view.active
    assert view.heartbeats()[0].progress.consumed_tokens == 10 * TOKENS_PER_STEP


def test_snapshots_within_a_moment_are_one(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that are requested shortly after each other are shared, so several panels read the files only
    once.
    """
    monkeypatch.setattr(run_view, "DESCRIPTION_AGE_SECONDS", 60.0)
    job = FakeJob(run, steps=10)
    job.one_step()
    view = RunView(run)
    first = view.describe()
    job.one_step()
    assert view.describe() is first
    job.finish("CANCELLED", "stopped on request after step 2")


@pytest.mark.slow
def test_dead_supervisor_is_lost_and_a_dead_rank_is_gone(run: RunDir) -> None:
    """A job whose supervisor is gone is shown as LOST with the cause, even if job.json says otherwise."""
    code = (
        "import sys, os; from nbtrain.base.run_directory.rundir import RunDir\n"
        "from tests.lab.widgets.fake_run import FakeJob\n"
        "job = FakeJob(RunDir(sys.argv[1]), steps=10); job.one_step(); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=False, env=environment)
    snapshot = RunView(run).describe().to_dict()
    assert snapshot["state"] == "LOST"
    assert "died without a message while the job was RUNNING" in snapshot["cause"]
    assert not snapshot["active"]
    assert snapshot["ranks"][0]["phase"] == "Gone"
    resume = f"`nbtrain resume {run.name}` continues the run"
    assert progress_line(run).endswith(f"the machine was restarted) | {resume}")
    assert describe_job(run).cause.endswith(f"the machine was restarted); {resume}")
    # An agent's ranks outlive the supervisor.
    path = run.newest_job().heartbeat(0)
    replace(Heartbeat.read(path), process=ProcessIdentity.of(os.getpid())).write(path)
    cancel = (
        f"its ranks are still running (step 1): `nbtrain cancel {run.name}` makes them save and exit, and "
        f"{resume}"
    )
    assert progress_line(run).endswith(f" | {cancel}")
    assert describe_job(run).cause.endswith(f"; {cancel}")


def test_silent_rank_is_named_and_a_killed_one_says_how(run: RunDir) -> None:
    """A rank whose heartbeat is old is marked as stale; a killed rank shows the signal and the message."""
    job = FakeJob(run, steps=10, world_size=3)
    job.one_step()
    beat = Heartbeat.read(job.job.heartbeat(1))
    beat.time -= 100
    beat.write(job.job.heartbeat(1))
    ExitRecord(2, 0, time.time(), None, 9, "killed", 1, "killed by SIGKILL").write(job.job.exit_record(2, 0))
    ranks = RunView(run).describe().to_dict()["ranks"]
    assert [rank["stale"] for rank in ranks] == [False, True, False]
    assert [ranks[2][key] for key in ("phase", "activity", "signal")] == ["Error", "killed by a signal", 9]
    job.finish("FAILED", "rank 2 was killed by SIGKILL")


def test_ranks_of_a_new_attempt_are_not_shown_as_failed(run: RunDir) -> None:
    """After a restart, a rank without a heartbeat of the new attempt is Starting, whatever ended the earlier
    one; while the job is still restarting, it shows how the rank ended.
    """
    job = FakeJob(run, steps=10, world_size=2)
    job.one_step()
    ExitRecord(1, 0, time.time(), None, 9, "killed", 1, "killed by SIGKILL").write(job.job.exit_record(1, 0))
    job.record.attempt = 1
    found = {}
    for state in ("RESTARTING", "STARTING"):
        job.record.state = state
        job.record.write(job.job.job_json)
        ranks = RunView(run).describe().to_dict()["ranks"]
        found[state] = [(rank["phase"], rank["step"], rank["message"], rank["stale"]) for rank in ranks]
        page = describe_job(run).replicas[0].ranks
        assert [(row.phase, row.step) for row in page] == [row[:2] for row in found[state]]
    assert found["RESTARTING"][1] == ("Error", 1, "killed by SIGKILL", False)
    assert found["STARTING"] == [("Starting", None, "", False)] * 2
    # The first attempt reached more steps than the second one resumes with.
    job.record.state, attempts = "RUNNING", [AttemptRecord(0, 0.0, 2, 2, first_step=0)]
    job.record.attempts = [*attempts, AttemptRecord(1, 0.0, 2, 2, first_step=100)]
    job.record.write(job.job.job_json)
    for rank, step in ((0, 0), (1, 101)):
        path = job.job.heartbeat(rank)
        replace(Heartbeat.read(path), attempt=1, step=step, phase="load").write(path)
    described, page = RunView(run).describe().to_dict(), describe_job(run)
    assert [row["step"] for row in described["ranks"]] == [100, 101]
    assert [row.step for row in page.replicas[0].ranks] == [100, 101]
    job.finish("CANCELLED", "only a test")


def test_rank_that_ended_before_its_first_heartbeat(run: RunDir) -> None:
    """A rank without a heartbeat of the newest attempt, but with its log, shows how it ended there."""
    job = FakeJob(run, steps=10)
    job.one_step()
    ExitRecord(0, 0, 1.0, None, 9, "killed", 1, "killed by SIGKILL").write(job.job.exit_record(0, 0))
    job.job.log(0, 1).write_text("import torch\n")
    ExitRecord(0, 1, 2.0, 1, None, "failed", None, "boom").write(job.job.exit_record(0, 1))
    job.record.attempt, job.record.state = 1, "FAILED"
    job.record.write(job.job.job_json)
    (row,), (on_page,) = RunView(run).describe().to_dict()["ranks"], describe_job(run).replicas[0].ranks
    assert (row["attempt"], row["exit_code"], row["message"]) == (1, 1, "boom")
    assert (on_page.attempt, on_page.exit_code) == (1, 1)
    job.tensorboard.close()


def test_rank_that_has_not_spoken_waits(run: RunDir) -> None:
    """Before the first heartbeat, there is a row for each rank of the job, but no progress."""
    job = FakeJob(run, steps=10, world_size=2)
    snapshot = RunView(run).describe().to_dict()
    assert [rank["phase"] for rank in snapshot["ranks"]] == ["Pending", "Pending"]
    assert snapshot["progress"] is None
    job.finish("CANCELLED", "stopped before the first step")


def test_trial_fills_its_bar(run: RunDir) -> None:
    """With max_steps, progress is measured in steps of the trial, not in train_tokens."""
    from nbtrain.config.load import to_yaml
    from tests.lab.widgets.fake_run import run_config

    job = FakeJob(run, steps=5)
    config = run_config("gpt-fake", 1000)
    trial = config.model_copy(update={"batch": config.batch.model_copy(update={"max_steps": 5})})
    run.config_yaml.write_text(to_yaml(trial))
    for _ in range(5):
        job.one_step()
    progress = RunView(run).describe().to_dict()["progress"]
    assert progress["target_tokens"] == 5 * TOKENS_PER_STEP
    assert progress["fraction"] == 1.0
    job.finish("SUCCEEDED", "max_steps = 5 are done")


def test_resumed_run_has_one_point_per_step_and_both_jobs(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the curves, the steps of the second job replace the same steps of the first job; both jobs are
    listed.
    """
    first = FakeJob(run, steps=20)
    for _ in range(12):
        first.one_step()
    first.finish("FAILED", "rank 0 failed: out of memory")
    monkeypatch.setattr(time, "gmtime", lambda now=None, real=time.gmtime, at=time.time: real(at() + 5))
    second = FakeJob(run, steps=20, start=10)
    for _ in range(3):
        second.one_step()
    snapshot = RunView(run).describe().to_dict()
    assert snapshot["curves"]["loss"]["steps"] == list(range(1, 14))
    assert [(job["state"], job["resumed_from_step"]) for job in snapshot["jobs"]] == [
        ("FAILED", None),
        ("RUNNING", 10),
    ]
    assert snapshot["job"]["job_id"] == second.job.job_id
    second.finish("CANCELLED", "stopped on request after step 13")


def test_a_resume_with_other_settings_is_shown(run: RunDir) -> None:
    """The view follows a run that is resumed with other settings, although the submission rewrites
    config.yaml.
    """
    from nbtrain.config.load import to_yaml
    from tests.lab.widgets.fake_run import run_config

    job = FakeJob(run, steps=4)
    job.one_step()
    view = RunView(run)
    assert view.describe().to_dict()["progress"]["fraction"] == 0.25
    run.config_yaml.write_text(to_yaml(run_config(run.name, 10, world_size=2)))
    os.utime(run.config_yaml, ns=(1, 1))  # never within one tick of the first one's clock
    snapshot = view.describe().to_dict()
    assert (snapshot["progress"]["fraction"], snapshot["config"]["data_parallel_size"]) == (0.1, 2)
    job.finish("CANCELLED", "stopped on request after step 1")


def test_run_without_a_job(run: RunDir) -> None:
    """A run that was never submitted is shown without a job."""
    run.path.mkdir()
    snapshot = RunView(run).describe().to_dict()
    assert (snapshot["state"], snapshot["job"], snapshot["ranks"]) == ("NEW", None, [])
    assert snapshot["cause"] == "nothing was submitted yet"


def test_numbers_that_json_lacks_are_null(run: RunDir) -> None:
    """NaN and infinite losses become null in JSON and gaps in the chart."""
    job = FakeJob(run, steps=10)
    job.step = 1
    job.scalars(loss=math.nan)
    job.step = 2
    job.scalars(loss=math.inf)
    job.step = 3
    job.scalars(loss=2.0)
    loss = RunView(run).describe().to_dict()["curves"]["loss"]
    assert (loss["values"], loss["bad"]) == ([None, None, 2.0], [[1, 2]])
    job.finish("FAILED", "the loss is NaN")


def test_scalars_by_name(run: RunDir) -> None:
    """A scalar is looked up by its name in metrics.SCALARS; an unknown name is an error that lists the known
    ones.
    """
    job = FakeJob(run, steps=10)
    job.one_step()
    view = RunView(run)
    assert view.scalars("grad_norm").steps == [1]
    assert len(view.scalars("mfu")) == 0
    with pytest.raises(KeyError, match=r"'lm loss' is not one of nbtrain's scalars: loss, validation_loss"):
        view.scalars("lm loss")
    job.finish("CANCELLED", "stopped")


def test_losses_of_named_datasets(run: RunDir) -> None:
    """The losses of several datasets are scalars under the datasets' names; they come after the others, and
    set-2 comes before set-10.
    """
    job = FakeJob(run, steps=10)
    job.step = 1
    job.scalars(**{"loss": 2.0, "grad_norm": 1.0, "loss/set-10": 1.5, "loss/set-2": 1.0, "loss/a b/c": 2.5})
    view = RunView(run)
    assert view.scalars("loss/set-10").values == [1.5]
    assert view.scalar_names() == ["loss", "grad_norm", "loss/a b/c", "loss/set-2", "loss/set-10"]
    assert [row["tag"] for row in metrics(view, CurvesRequest(()))["tags"]] == view.scalar_names()
    assert len(view.scalars("loss/other")) == 0
    job.finish("CANCELLED", "stopped")


def test_a_curve_is_called_what_its_dataset_or_task_is(run: RunDir) -> None:
    """The name of a dataset or task, chosen by the user, is shown unchanged; in other names, underscores
    become spaces.
    """
    job = FakeJob(run, steps=10)
    job.step = 1
    job.scalars(**{"grad_norm": 1.0, "loss/web_text": 1.5, "task/my_task acc_norm": 0.5})
    titles = {row["tag"]: row["title"] for row in metrics(RunView(run), CurvesRequest(()))["tags"]}
    assert titles == {
        "grad_norm": "gradient norm",
        "loss/web_text": "loss of web_text",
        "task/my_task acc_norm": "my_task acc_norm",
    }
    job.finish("CANCELLED", "stopped")


def test_thinning_keeps_the_trend_ends_and_spikes() -> None:
    """10,000 points are reduced to 300 means; the spike and the dip are kept as extremes of their
    intervals.
    """
    values = [math.sin(at / 500) for at in range(10_000)]
    values[4321], values[777] = 50.0, -50.0
    found = band(values, 300)
    assert len(found.at) == 300 and found.at == sorted(found.at)
    assert (found.at[0], found.at[-1]) == (0, 9999)
    assert (found.values[0], found.values[-1]) == (values[0], values[-1])
    assert (max(found.highs), min(found.lows)) == (50.0, -50.0)
    # No mean follows the spike to more than its share of 34 points.
    off = [abs(value - math.sin(at / 500)) for at, value in zip(found.at, found.values)]
    assert max(off) < 51 / 33 and sorted(off)[-3] < 0.05
    assert all(low <= value <= high for low, value, high in zip(found.lows, found.values, found.highs))
    assert band([3.0, 4.0], 300) == Band([0, 1], [3.0, 4.0])


def test_a_nan_hides_no_spike_from_thinning() -> None:
    """An interval that begins with NaN keeps its lowest and highest values; an interval with only NaN is a
    gap.
    """
    values = [1.0] * 1000
    values[400:404] = [math.nan, 99.0, -99.0, 1.0]
    values[800:806] = [math.nan] * 6
    found = band(values, 502)
    assert len(found.at) <= 502 and (max(found.highs), min(found.lows)) == (99.0, -99.0)
    assert 1 <= sum(map(math.isnan, found.values)) <= 3
    gaps = Gaps()
    gaps.note_many(range(1000), values)
    assert gaps.ranges == [[400, 400], [800, 805]]


def test_encoded_is_json_of_anything():
    """NaN and infinity become null in JSON; invalid Unicode in a file name and very large numbers are
    kept.
    """
    value = {"a": [1.5, math.nan, math.inf, (2, None)], "b": "\udcff", "c": 1 << 70}
    expected = {"a": [1.5, None, None, [2, None]], "b": "\udcff", "c": 1 << 70}
    assert json.loads(encoded(value)) == finite(value) == expected
    del value["b"], value["c"], expected["b"], expected["c"]
    assert json.loads(encoded(value)) == finite(value) == expected


def test_overflows_of_fp16_are_in_the_line(run: RunDir) -> None:
    job = FakeJob(run, steps=4)
    job.one_step()
    beat = Heartbeat.read(job.job.heartbeat(0))
    assert beat and beat.progress
    lines = []
    for count in (None, 0, 1, 1024):
        beat.progress.overflow_steps = count
        beat.write(job.job.heartbeat(0))
        lines.append([part for part in progress_line(run).split(" | ") if "overflow" in part])
    assert lines == [[], [], ["1 overflow step"], ["1,024 overflow steps"]]
    job.tensorboard.close()


def test_progress_line_and_status_text(run: RunDir) -> None:
    """Progress is printed as one line in a log and fills one screen in a terminal; an ended job has its
    cause.
    """
    job = FakeJob(run, steps=4, world_size=2)
    for _ in range(2):
        job.one_step()
    line = progress_line(run)
    assert line.startswith("gpt-fake RUNNING | step 2/4 | tokens 2.05k/4.1k | loss ")
    assert line.endswith(" tokens/s | 0 s left")
    # The goal in steps is shown, as in the panel: a trial trains fewer tokens than its schedule.
    beat = Heartbeat.read(job.job.heartbeat(0))
    assert beat and beat.progress
    beat.progress.target_tokens = 2048
    beat.write(job.job.heartbeat(0))
    assert "tokens 2.05k/2.05k" in progress_line(run)
    text = str(status_report(run))
    assert f"job {job.job.job_id}: 2 ranks on backend local, " in text
    assert re.search(r"\n     1  Running  training     2  \d+ s ago", text)
    assert "resume from" not in text
    ResumeCertificate("data-exact", ["device"], 1, "a" * 64, 0.0).write(job.job.resume_json)
    resumed = "\nresume from step 1 is data-exact, next batch aaaaaaaaaaaa: device\n"
    assert resumed in str(status_report(run))
    # From another attempt, which resumed an older checkpoint, and from this one.
    job.events.write("warning", f"checkpoint global_step1 {NOT_USED}: a is missing; trying", step=1)
    job.events.write("warning", f"checkpoint global_step3 {NOT_USED}: b is missing; trying", step=3)
    assert resume_report(run)[1].items == ["checkpoint global_step3 is not used: b is missing"]
    assert "device\n  - checkpoint global_step3 is not used: b is missing\n" in str(status_report(run))
    # Saved again and complete: the skipped checkpoint is history.
    run.checkpoint(3).mkdir(parents=True)
    assert resume_report(run)[1].items
    files.write_json(run.checkpoint_manifest(3), {"schema_version": 2, "files": {}})
    assert not resume_report(run)[1].items
    job.finish("FAILED", "rank 1 was killed by SIGKILL")
    assert progress_line(run).endswith(" tokens/s | rank 1 was killed by SIGKILL")
    assert "  state    FAILED: rank 1 was killed by SIGKILL" in str(status_report(run))


def test_a_status_names_a_config_that_was_damaged(run: RunDir) -> None:
    FakeJob(run, steps=4).tensorboard.close()
    for text in ("a: 1\n", "resources: 3\n", "resources: {}\n", "resources: {device: 1}\n"):
        run.config_yaml.write_text(text)
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            status_report(run)


def test_what_a_dead_rank_did_last_is_not_shown_as_going_on(run: RunDir) -> None:
    """For a dead rank, throughput, time left and phase are not shown; for a live rank, throughput is a recent
    mean.
    """
    job = FakeJob(run, steps=4)
    job.one_step()
    beat = Heartbeat.read(job.job.heartbeat(0))
    beat.phase, beat.progress.eta_seconds, beat.progress.tokens_per_second = "save", 528.0, 298.0
    beat.progress.consumed_samples, beat.progress.consumed_tokens = 2, 200
    beat.progress.samples_per_second = 30.0
    beat.write(job.job.heartbeat(0))
    assert progress_line(run).endswith(" | 3,000 tokens/s | 8 min 48 s left | saving")
    job.record.attempts = [AttemptRecord(1, time.time(), 1, 1)]
    job.record.write(job.job.job_json)
    assert "tokens/s" not in progress_line(run)
    assert " left" not in progress_line(run)
    job.record.attempts = []
    job.record.write(job.job.job_json)
    replace(beat, process=replace(beat.process, start_ticks=1)).write(job.job.heartbeat(0))
    line = progress_line(run)
    assert line.startswith("gpt-fake RUNNING | step 1/4 | tokens 200/")
    assert not any(word in line for word in ("tokens/s", "left", "saving"))
    progress = RunView(run).describe().to_dict()["progress"]
    assert {progress[key] for key in ("phase", "phase_seconds", "eta_seconds", "tokens_per_second")} == {None}
    job.tensorboard.close()


STATUS = {
    "QUEUED": "gpt-fake QUEUED\nwaits for 1 GPU; 0 are free\nJOBEVENT",
    "STARTING": "gpt-fake STARTING\nJOBEVENT",
    "RUNNING": "PROGRESS | 0 s left\nJOB\n0 Running training 2 0 s agoEVENT",
    "SUCCEEDED": "PROGRESS\nall is done\nJOB\n0 Succeeded 2 all is doneEVENT all is done",
    "FAILED": "PROGRESS\nboom and more\nJOB\n0 Error 2 boom and moreEVENT boom and more",
    "LOST": (
        "PROGRESS\nits supervisor (pid PID) died without a message while the job was RUNNING (killed, out of "
        "memory, or the machine was restarted)\nits ranks are still running (step 2): "
        "`nbtrain cancel gpt-fake` makes them save and exit, and "
        "`nbtrain resume gpt-fake` continues the run\nJOB\n0 Gone training 2EVENT"
    ),
}


@pytest.mark.parametrize("state", STATUS)
def test_status_is_tidy_in_every_state(run: RunDir, state: str) -> None:
    """The status has no trailing spaces and no message of several lines, whatever the state."""
    job = FakeJob(run, steps=2)
    job.supervisor_events.path.unlink()
    causes = {"SUCCEEDED": "all is done", "FAILED": "boom\n  and more\n"}
    cause = {"QUEUED": "waits for 1 GPU; 0 are free", **causes}.get(state)
    if state in ("QUEUED", "STARTING"):
        job.record.state, job.record.cause = state, cause
    else:
        job.one_step()
        job.one_step()
    if state in causes:
        ended = "finished" if state == "SUCCEEDED" else "failed"
        ExitRecord(0, 0, time.time(), 0, None, ended, 2, cause).write(job.job.exit_record(0, 0))
        job.record.state, job.record.cause, job.record.ended_at = state, cause, time.time()
    if state == "LOST":
        job.record.supervisor = ProcessIdentity(os.getpid(), 1, "another boot")
    job.record.write(job.job.job_json)
    job.supervisor_events.write("state", causes.get(state, ""))
    job.tensorboard.close()
    text = str(status_report(run))
    text = re.sub(r"^gpt-fake [A-Z]+ \| step 2/2 .* tokens/s", "PROGRESS", text)
    text = re.sub(r"^job .*: 1 rank on backend local, .*, attempt 0, 0 restarts$", "JOB", text, flags=re.M)
    text = re.sub(r"\d+ s ago", "0 s ago", text)
    text = re.sub(r"\d\d:\d\d:\d\d", "TIME", text).replace(f"pid {os.getpid()}", "pid PID")
    assert not any(line.endswith(" ") for line in text.splitlines())
    words = "\n".join(" ".join(line.split()) for line in text.splitlines())
    words = re.sub(r"\n\nRanks\nRANK [A-Z ]+", "", words)
    assert words == STATUS[state].replace("EVENT", "\n\nLast events\nTIME (UTC) KIND MESSAGE\nTIME state")


def test_until_a_checkpoint_is_loaded_its_step_is_shown(run: RunDir) -> None:
    """A run that resumes or restarts from step 70 shows step 70, not 0, even if its ranks fail early."""
    job = FakeJob(run, steps=100, world_size=2)
    first = AttemptRecord(0, 0.0, 2, 2, first_step=70, first_tokens=70 * TOKENS_PER_STEP)
    job.record.attempts = [first]
    job.record.write(job.job.job_json)
    for rank in (0, 1):
        job.job.heartbeat(rank).unlink(missing_ok=True)
    assert progress_line(run) == "gpt-fake RUNNING | step 70"
    assert read_status(run, time.time()).step == 70
    job.step = 0
    job.heartbeat("load", 4.0, 1e-3, 10.0)
    assert progress_line(run).startswith("gpt-fake RUNNING | step 70/100 | tokens 71.7k/102.4k")
    snapshot = RunView(run).describe().to_dict()
    assert (snapshot["progress"]["step"], snapshot["progress"]["fraction"]) == (70, 0.7)
    assert [rank["step"] for rank in snapshot["ranks"]] == [70, 70]
    assert read_status(run, time.time()).step == 70
    # It has loaded its step, and has not counted tokens yet.
    job.step = 70
    job.heartbeat("load", None, 1e-3, 10.0)
    beat = Heartbeat.read(job.job.heartbeat(0))
    replace(beat, progress=replace(beat.progress, consumed_tokens=0)).write(job.job.heartbeat(0))
    assert progress_line(run).startswith("gpt-fake RUNNING | step 70/100 | tokens 71.7k/102.4k")
    # The newest was damaged, and it resumes from an older one: the rank's report counts.
    job.step = 60
    job.heartbeat("train", 4.0, 1e-3, 10.0)
    assert progress_line(run).startswith("gpt-fake RUNNING | step 60/100")
    # The next attempt has begun, and none of its ranks has reported.
    job.record.attempts = [first, AttemptRecord(1, 0.0, 2, 2, first_step=50, first_tokens=1000)]
    job.record.write(job.job.job_json)
    assert progress_line(run).startswith("gpt-fake RUNNING | step 50/100 | tokens 1k/")
    job.finish("FAILED", "rank 0 failed: CheckpointError")


def test_other_process_with_the_pid_is_not_the_rank(run: RunDir) -> None:
    """If another process has reused a rank's pid, the rank counts as gone."""
    job = FakeJob(run, steps=10)
    job.one_step()
    beat = Heartbeat.read(job.job.heartbeat(0))
    beat.process = ProcessIdentity(os.getpid(), 1, beat.process.boot_id)
    beat.write(job.job.heartbeat(0))
    assert RunView(run).describe().to_dict()["ranks"][0]["phase"] == "Gone"
    job.finish("CANCELLED", "stopped")


def lose(job: FakeJob) -> None:
    """Write the records of a job that began 500 s ago and whose supervisor has disappeared."""
    job.record.created_at -= 500
    job.record.started_at, job.record.stamps = job.record.created_at, {}
    job.record.supervisor = ProcessIdentity(os.getpid(), 1, "another boot")
    job.record.write(job.job.job_json)


def ends_and_durations(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return (end, elapsed seconds) after asserting that all views agree, now and an hour later."""
    found, now = [], time.time()
    for later in (0, 3600):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        snapshot = RunView(run).describe().to_dict()
        ends = {snapshot["job"]["ended_at"], snapshot["jobs"][-1]["ended_at"]}
        assert ends == {read_status(run, now + later).ended_at}
        words = dict(snapshot["shown"]["line"])["elapsed"]
        assert words in str(status_report(run))
        found.append((*ends, snapshot["job"]["elapsed_seconds"], words))
    assert found[0] == found[1]
    return found[0][:2]


@pytest.mark.parametrize("stamped", [True, False])
def test_a_lost_job_ended_at_its_last_heartbeat(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, stamped: bool
) -> None:
    """A LOST job ends at its last heartbeat, measured by the time since boot or by the wall clock."""
    job = FakeJob(run, steps=10, world_size=2)
    job.one_step()
    lose(job)
    for rank, age in ((0, 300), (1, 200)):
        beat = Heartbeat.read(job.job.heartbeat(rank))
        beat.mark("time")
        beat.time -= age
        beat.stamps["time"].seconds -= age
        if not stamped:
            beat.stamps = {}
        beat.write(job.job.heartbeat(rank))
    if stamped:
        job.record.stamps["started_at"] = replace(
            beat.stamps["time"], seconds=beat.stamps["time"].seconds - 7
        )
        job.record.write(job.job.job_json)
    end, elapsed = ends_and_durations(run, monkeypatch)
    assert end == pytest.approx(beat.time, abs=1)
    assert elapsed == pytest.approx(7 if stamped else beat.time - job.record.started_at, abs=1)
    # Its supervisor reported after its ranks; a copy of the run has new time stamps.
    for moment in (time.time(), time.time() + 9000):
        for path, age in (*((path, 40) for path in job.job.heartbeats()), (job.job.job_json, 0)):
            os.utime(path, (moment - age, moment - age))
        later, longer = ends_and_durations(run, monkeypatch)
        assert (later, longer) == (pytest.approx(end + 40, abs=2), pytest.approx(elapsed + 40, abs=2))
    assert ", last sign of life after " in str(status_report(run))
    assert RunView(run).state == "LOST"


def test_a_lost_job_without_a_heartbeat_ended_when_job_json_was_written(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = FakeJob(run, steps=10)
    lose(job)
    for path in (job.job.path / "heartbeat").glob("*.json"):
        path.unlink()
    moment = job.record.created_at + 60
    os.utime(job.job.job_json, (moment, moment))
    end, elapsed = ends_and_durations(run, monkeypatch)
    assert (end, elapsed) == (pytest.approx(moment), pytest.approx(60))


def test_the_end_in_the_final_record_counts(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the run directory has become read-only, the end is read from the record that was saved elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = FakeJob(run, steps=10)
    job.one_step()
    lose(job)
    ended = job.record.started_at + 42
    final_record.keep(replace(job.record, state="FAILED", cause="read-only", ended_at=ended, restarts=3))
    assert ends_and_durations(run, monkeypatch) == (ended, pytest.approx(42))
    view = RunView(run)
    assert (view.state, view.describe().to_dict()["job"]["restarts"]) == ("FAILED", 3)


def test_elapsed_time_does_not_depend_on_the_clock(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting the clock back by an hour changes neither the elapsed time nor the age of any record."""
    job = FakeJob(run, steps=10)
    job.one_step()
    heartbeat = Heartbeat.read(job.job.heartbeat(0))
    for record, names in ((job.record, ("started_at",)), (heartbeat, ("time", "phase_since"))):
        for name in names:
            record.mark(name)
            record.stamps[name].seconds -= 90
    job.record.write(job.job.job_json)
    heartbeat.write(job.job.heartbeat(0))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    snapshot = RunView(run).describe().to_dict()
    found = [snapshot["job"]["elapsed_seconds"], snapshot["progress"]["phase_seconds"]]
    found += [snapshot["progress"]["heartbeat_age_seconds"], snapshot["ranks"][0]["heartbeat_age_seconds"]]
    assert all(90 <= seconds < 3600 for seconds in found), found
    assert " min " in dict(snapshot["shown"]["line"])["elapsed"]


@pytest.mark.parametrize(
    ("state", "shows"),
    [("RUNNING", True), ("SUSPENDED", False), ("RESTARTING", False), ("QUEUED", False), ("CANCELLED", False)],
)
def test_the_time_left_is_the_same_everywhere(run: RunDir, state: str, shows: bool) -> None:
    """For a job on another host, the panel, `status` and `runs` all show 20 minutes left."""
    job = FakeJob(run, steps=40)
    job.one_step()
    job.one_step()
    there = replace(job.identity, host="elsewhere", boot_id="its own")
    beat = Heartbeat.read(job.job.heartbeat(0))
    replace(beat, process=there, progress=replace(beat.progress, eta_seconds=1200.0)).write(
        job.job.heartbeat(0)
    )
    job.record.state, job.record.supervisor = state, there
    job.record.write(job.job.job_json)
    snapshot = RunView(run).describe().to_dict()
    left = 1200.0 if shows else None
    assert snapshot["state"] == state
    assert snapshot["progress"]["eta_seconds"] == read_status(run, time.time()).eta_seconds == left
    assert (["time left", "20 min 0 s"] in snapshot["shown"]["line"]) is shows
    assert ("20 min 0 s left" in progress_line(run)) is shows
    job.tensorboard.close()
