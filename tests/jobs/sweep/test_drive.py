"""Sweeps driven to their end: how many at once, stopped by a rule, killed with everything and continued."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, JobFailed
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, NO_JOB, RUNNING, SUCCEEDED
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, TrainingProgress
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.cli.__main__ import main
from nbtrain.config.load import to_yaml
from nbtrain.config.load.edits import with_overrides, with_values
from nbtrain.jobs.sweep import drive as driver
from nbtrain.jobs.sweep import sweep_plan
from nbtrain.jobs.sweep.drive import drive
from nbtrain.jobs.sweep.results import SweepResults, SweepRow, sweep_results, write_page
from nbtrain.jobs.sweep.stop_rule import TokenCurve
from nbtrain.jobs.sweep.sweep_file import read_sweep
from nbtrain.jobs.sweep.sweep_plan import plan_sweep
from nbtrain.jobs.sweep.sweep_record import SweepRecord, read_record, sweep_folder
from nbtrain.monitor.status.run_status import RunStatus
from tests.jobs.conftest import FAKE_RANK
from tests.waiting import wait_until

SWEEP = """
sweep: seeds
run: tiny.yaml
overrides:
  batch.train_tokens: 2560
  backend.share_devices: true
  backend.env: {{FAKE_STEPS: "20", FAKE_STEP_SECONDS: "{seconds}", FAKE_FAULTS: "[]"}}
grid: {{lr_schedule.lr: [1.0e-3, 2.0e-3], model.seed: {seeds}}}
at_once: {at_once}
"""


@pytest.fixture
def sweep(tiny, workspace, monkeypatch):
    """Return a function that reads a sweep of fake runs: sweep(seeds=[1, 2], at_once=2, more="")."""
    tiny()
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.1)

    def read(seeds=(1,), at_once=2, seconds=0.01, more=""):
        path = workspace / "sweep.yaml"
        path.write_text(SWEEP.format(seeds=list(seeds), at_once=at_once, seconds=seconds) + more)
        return read_sweep(path)

    return read


@pytest.mark.slow
def test_a_sweep_runs_so_many_at_once_and_a_second_call_starts_nothing(sweep):
    """At most at_once runs are active, all succeed, and the sweep's page has each of them."""
    read, most, said = sweep(seeds=[1, 2], at_once=2), [], []
    turn = drive(read, command=(FAKE_RANK,), say=said.append, turn_done=lambda turn: most.append(turn.active))
    assert set(turn.states.values()) == {SUCCEEDED} and max(most) <= 2
    assert sorted(said) == sorted(f"{run.name}: started" for run in read.runs)
    results = sweep_results("seeds")
    assert results.succeeded and [row.state for row in results.rows] == ["SUCCEEDED"] * 4
    assert all(row.spending.goodput is not None for row in results.rows)
    assert results.spending.device_hours == sum(row.spending.device_hours for row in results.rows)
    page = write_page(results).read_text()
    assert all(run.name in page for run in read.runs) and "<script" not in page
    found = json.loads(json.dumps(results.to_dict()))
    assert found["best"]["mean"] is not None and found["cost"]["faults"] == {}
    assert sum(found["cost"]["hours"].values()) == pytest.approx(results.spending.device_hours)
    assert "Cost of all runs" in page and "training, without repeated steps" in page
    said.clear()
    assert drive(read, command=(FAKE_RANK,), say=said.append).states == turn.states and said == []
    read.path.write_text(read.path.read_text().replace("2560", "5120"))
    with pytest.raises(ConfigError, match=r"submitted with other settings: .*train_tokens"):
        drive(read_sweep(read.path), command=(FAKE_RANK,))


def test_only_one_process_drives_a_sweep(sweep):
    folder = sweep_folder("seeds")
    folder.mkdir(parents=True)
    descriptor = flock_folder(folder, blocking=False)
    try:
        with pytest.raises(JobError, match="another process is already running the sweep seeds"):
            drive(sweep())
    finally:
        os.close(descriptor)


def test_a_run_of_another_owner_is_refused(sweep):
    """A run that has one of the sweep's names and is not of it is left alone."""
    read = sweep()
    run = RunDir.named(read.runs[0].name)
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"run_id": "r", "parent": None, "created_at": 1.0})
    files.write_text(run.config_yaml, to_yaml(with_values(read.runs[0].config, {"labels": {}})))
    with pytest.raises(ConfigError, match="do not belong to this sweep: seeds-lr-0-001-seed-1"):
        drive(read)


def test_a_run_of_a_sweep_may_be_evaluated(sweep):
    """A run of the sweep that was resumed with mode=eval still has the settings of the sweep's file."""
    read = sweep()
    run = RunDir.named(read.runs[0].name)
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"run_id": "r", "parent": None, "created_at": 1.0})
    for settings, refused in (({"mode": "eval"}, None), ({"mode": "eval", "model.seed": 9}, "model.seed")):
        files.write_text(run.config_yaml, to_yaml(with_overrides(read.runs[0].config, settings)))
        with pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext():
            driver.refuse_other_runs(read)


def test_a_run_that_was_evaluated_before_its_end_has_not_succeeded(sweep, monkeypatch):
    """The results name it, and --again trains it on."""
    read, resumed = sweep(), []
    for each, mode, step in zip(read.runs, ("eval", "full"), (4, 20)):
        run = RunDir.named(each.name)
        job = run.job("20260101-000000-aaaa")
        job.make_folders()
        files.write_json(run.run_json, {"run_id": "r", "parent": None, "created_at": 1.0})
        files.write_text(run.config_yaml, to_yaml(with_overrides(each.config, {"mode": mode})))
        JobRecord(job.job_id, "r", run.name, SUCCEEDED, 1.0, world_size=1, ended_at=2.0).write(job.job_json)
        run.checkpoint(step).mkdir(parents=True)
        files.write_json(run.checkpoint_manifest(step), {"schema_version": 2, "files": {}})
    evaluated = read.runs[0].name
    monkeypatch.setattr(driver, "resume", lambda run, command: resumed.append(run.name))
    drive(read)
    assert resumed == []
    drive(read, again=True)
    assert resumed == [evaluated]
    results = sweep_results("seeds")
    assert [row.state for row in results.rows] == ["only evaluated before its last step", SUCCEEDED]
    with pytest.raises(JobFailed, match=rf"1 run did not succeed: {evaluated} \(only evaluated before"):
        results.must_succeed()


@pytest.mark.slow
def test_a_rule_stops_a_run_and_its_record_says_so(sweep, monkeypatch):
    """A run that cannot win is stopped with its reason in notes, events and results, and stays stopped."""
    read = sweep(
        seeds=[1, 2], at_once=4, seconds=0.4, more="stop: {rule: median, after_tokens: 64, metric: loss}\n"
    )
    worst = read.runs[3].name

    def curve(run, metric):
        # A fake rank writes no metrics.
        return TokenCurve([64], [9.0 if run.name == worst else 3.0])

    monkeypatch.setattr(driver, "read_curve", curve)
    turn = drive(read, command=(FAKE_RANK,))
    assert turn.states.pop(worst) == "CANCELLED" and set(turn.states.values()) == {SUCCEEDED}
    reason = read_record("seeds").stopped[worst]
    assert "the median of 3 other runs" in reason
    run = RunDir.named(worst)
    assert reason in json.loads(run.notes_json.read_text())["notes"]
    assert any("stop_rule" in path.read_text() for path in run.newest_job().events.glob("*"))
    results = sweep_results("seeds")
    assert results.succeeded and reason in str(results)
    assert drive(read, again=True, command=(FAKE_RANK,)).states[worst] == "CANCELLED"


def test_a_lost_run_is_resumed_until_it_saves_nothing_more(sweep, monkeypatch):
    """A run that is LOST each time is resumed again only after a new checkpoint, which may be on the nodes'
    disks; one that the rule has stopped is not resumed at all.
    """
    read, resumed = sweep(seeds=[1, 2]), []
    lost, stopped, *ended = (run.name for run in read.runs)
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(driver, "state_of", lambda name: SUCCEEDED if name in ended else LOST)

    def resume(run, command):
        resumed.append(run.name)
        LocalSaves([LocalSave(5, "id", ["a"], "20261121-031500-a1b2", 0, 0.0)]).keep(run)

    monkeypatch.setattr(driver, "resume", resume)
    sweep_folder("seeds").mkdir(parents=True)
    record = SweepRecord("seeds", "", [], [], {stopped: "above the bound"})
    record.write(sweep_folder("seeds") / "sweep.json")
    words = []
    turn = drive(read, turn_done=lambda turn: words.append(turn.words))
    assert resumed == [lost, lost] and list(turn.errors) == [lost]
    assert words == ["3 of 4 ended, 0 active, 1 to start"] * 2 + ["4 of 4 ended, 0 active, 1 failed"]


@pytest.mark.parametrize(
    "state, stopped", [(LOST, ""), (NO_JOB, ""), (LOST, "above the bound"), (RUNNING, "")]
)
def test_results_count_as_ended_what_the_driver_counts(state, stopped):
    """A run that the sweep would still start or resume has not ended; a lost one is named."""
    states = {"one": SUCCEEDED, "other": state}
    turn = driver.Turn(states, stopped=["other"] if stopped else ())
    rows = [
        SweepRow(name, {}, RunStatus(name, found, None, 1, 0.0), None, stopped if name == "other" else "")
        for name, found in states.items()
    ]
    is_lost = state == LOST and not stopped
    assert turn.ended == (2 if stopped else 1) and turn.words.startswith(f"{turn.ended} of 2 ended")
    said = f"{turn.ended} of 2 runs ended{', 1 lost' if is_lost else ''}."
    assert said in str(SweepResults("a", [], rows))


def test_a_run_that_cannot_be_submitted_is_told_apart_from_one_to_come(sweep, monkeypatch):
    """The results name a run that the sweep could not submit, with the reason, until the next call."""
    read = sweep(seeds=[1])
    bad, good = (run.name for run in read.runs)
    states = {bad: NO_JOB, good: NO_JOB}
    monkeypatch.setattr(driver, "state_of", states.get)

    def submit(run, command, tried):
        if run.name == bad:
            raise JobError("data/x: there is no such folder.")
        states[good] = SUCCEEDED

    monkeypatch.setattr(driver, "_submit", submit)
    drive(read)
    results = sweep_results("seeds")
    broken, waiting = results.rows
    assert (broken.state, waiting.state) == ("could not start", "to start")
    sentence = f"{bad} could not be started: data/x: there is no such folder."
    assert sentence in str(results) and sentence in results.as_report().html()
    assert "1 of 2 runs ended, 1 could not be started." in str(results)
    assert [run["error"] for run in results.to_dict()["runs"]] == ["data/x: there is no such folder.", ""]
    with pytest.raises(JobFailed, match="there is no such folder"):
        results.must_succeed()
    monkeypatch.setattr(driver, "_submit", lambda run, command, tried: states.update({run.name: SUCCEEDED}))
    drive(read)
    assert [row.error for row in sweep_results("seeds").rows] == ["", ""]


def test_a_run_whose_record_is_damaged_is_left(sweep):
    """A damaged record does not end the sweep; the results name the run."""
    name = sweep().runs[0].name
    job = RunDir.named(name).job("20260101-000000-aaaa")
    job.path.mkdir(parents=True)
    job.job_json.write_text("{")
    assert driver.state_of(name) == "DAMAGED"


def test_the_best_setting_has_the_lowest_finite_validation_loss():
    """A loss that is NaN is none, and a training loss is not compared with validation losses."""

    def row(lr, loss, validation_loss, metric="validation_loss"):
        progress = TrainingProgress(10, 10, loss=loss, validation_loss=validation_loss)
        status = RunStatus(f"run-{lr}", SUCCEEDED, None, 1, 0.0, progress=progress)
        return SweepRow(status.name, {"lr_schedule.lr": lr}, status, None, "", metric)

    rows = [row(0.1, math.nan, math.nan), row(0.2, 3.0, 3.2), row(0.3, 2.0, None)]
    results = SweepResults("a", ["lr_schedule.lr"], rows)
    assert results.best.settings == {"lr_schedule.lr": 0.2} and results.to_dict()["best"]["mean"] == 3.2
    assert results.to_dict()["runs"][0]["loss"] is None
    assert SweepResults("a", [], [row(0.1, 2.5, None, "loss")]).best.mean == 2.5


def test_the_json_of_a_plan_is_json(sweep, capsys):
    """--dry-run --json prints nothing but JSON, with the number of active runs that was asked for."""
    path = sweep().path
    assert main(["sweep", str(path), "--dry-run", "--json", "--at-once", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["at_once"] == 3 and len(printed["runs"]) == 2 and printed["problems"] == []


def test_limits_hold_for_the_sum(sweep, workspace):
    """The workspace's disk limit holds for all runs together, with the place of the limit."""
    read = sweep(seeds=[1, 2])
    planned = plan_sweep(read)
    one = planned.plans[0].disk.total_bytes
    (workspace / "limits.yaml").write_text(f"disk_bytes: {2 * one}\n")
    planned = plan_sweep(read)
    assert planned.problems == [problem for problem in planned.problems if "limits.yaml:1" in problem]
    with pytest.raises(ConfigError, match="all runs together"):
        planned.refuse()
    assert "RUN" in str(planned) and read.runs[0].name in str(planned)


def test_runs_that_wait_for_each_others_devices_are_not_at_once(sweep, monkeypatch):
    """Two runs that need two cores each run one after the other on two cores, and at once on four."""
    path = sweep().path
    path.write_text(path.read_text().replace("share_devices: true", "share_devices: false"))
    planned = plan_sweep(read_sweep(path))
    seconds = sum(one.duration.seconds for one in planned.plans)
    for cores, at_once in ((2, 1), (4, 2)):
        slots = [f"cpu-{number}" for number in range(cores)]
        monkeypatch.setattr(sweep_plan, "needs_of", lambda config, queue, slots=slots: (slots, 2))
        assert f"about {amounts.duration(seconds / at_once)} with {at_once} at once" in str(planned)


def test_the_disk_of_a_sweep_holds_its_dataset_once(sweep):
    """Limits count checkpoints and dataset, and the runs of a sweep share one dataset."""
    planned = plan_sweep(sweep())
    checkpoints = sum(one.disk.checkpoints_bytes for one in planned.plans)
    plans = [replace(one, disk=replace(one.disk, dataset_bytes=1000)) for one in planned.plans]
    assert len(plans) == 2
    assert replace(planned, plans=plans).totals["disk_bytes"] == checkpoints + 1000


DRIVER = (
    "import sys; from pathlib import Path; from nbtrain.jobs.sweep.drive import drive; "
    "from nbtrain.jobs.sweep.sweep_file import read_sweep; "
    "drive(read_sweep(Path(sys.argv[1])), command=tuple(sys.argv[2:]))"
)


def kill_everything(workspace: Path) -> None:
    """Kill -9 all processes of the runs of a workspace, until none is left."""

    def running() -> list[psutil.Process]:
        # A process that has ended and was not waited for has no command line.
        everyone = psutil.process_iter(["cmdline"])
        return [process for process in everyone if str(workspace) in " ".join(process.info["cmdline"] or [])]

    while left := running():
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def as_before_a_boot(run: RunDir) -> None:
    """Change the boot id in a job's records, as if the machine had booted since."""
    job = run.newest_job()
    record = JobRecord.read(job.job_json)
    if record is not None and record.supervisor is not None:
        record.supervisor = replace(record.supervisor, boot_id="an earlier one")
        record.write(job.job_json)
    for path in job.heartbeats():
        beat = Heartbeat.read(path)
        replace(beat, process=replace(beat.process, boot_id="an earlier one")).write(path)


@pytest.mark.slow
def test_everything_is_killed_and_the_machine_boots(sweep, workspace):
    """Six runs of which two are in the middle when every process is killed and the machine boots: the next
    call resumes these and starts the others, and all end as in a sweep that nothing has disturbed.
    """
    read = sweep(seeds=[1, 2, 3], at_once=2, seconds=0.2)
    arguments = [sys.executable, "-c", DRIVER, str(read.path), FAKE_RANK]
    with subprocess.Popen(arguments, cwd=workspace) as process:
        names = [run.name for run in read.runs[:2]]

        def steps(name: str) -> int:
            newest = RunDir.named(name).newest_job() if RunDir.named(name).path.is_dir() else None
            beat = Heartbeat.read(newest.heartbeat(0)) if newest else None
            return beat.step if beat else 0

        wait_until(lambda: all(steps(name) >= 6 for name in names), "both have saved")
        process.kill()
        kill_everything(workspace)
    started = [run.name for run in read.runs if RunDir.named(run.name).path.is_dir()]
    # The driver may have been killed while it submitted a run.
    there = [name for name in started if RunDir.named(name).newest_job() is not None]
    cut = [name for name in there if driver.state_of(name) in {*ACTIVE, LOST}]
    assert set(names) <= set(there) and cut
    for name in cut:
        as_before_a_boot(RunDir.named(name))
    said = []
    turn = drive(read, command=(FAKE_RANK,), say=said.append)
    assert set(turn.states.values()) == {SUCCEEDED}
    assert {f"{name}: resumed" for name in cut} <= set(said)
    for run in read.runs:
        # A fake rank ends like this: test_real_sweep.py compares real ones.
        directory = RunDir.named(run.name)
        assert directory.checkpoint_steps()[-1] == 20
        assert Heartbeat.read(directory.newest_job().heartbeat(0)).progress.loss == 5.0 - 20 / 100
    assert sweep_results("seeds").succeeded
    for name in set(names) & set(cut):
        record = JobRecord.read(RunDir.named(name).newest_job().job_json)
        assert record.resumed_from_step and record.resumed_from_step >= 5
