"""Submitting, resuming and cloning runs that are in the output directory in various states; no process is
started.
"""

import errno
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

import nbtrain as nb
from nbtrain.api.not_launched import NotLaunched
from nbtrain.base import files
from nbtrain.base.errors import ConfigError, RecordError, SubmitError
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, ProcessIdentity, TrainingProgress
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.cli.__main__ import main
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.load import load, load_resolved
from nbtrain.config.load.changes import changes_between
from nbtrain.config.yaml_source import show
from nbtrain.dataset.of_run import read_run_data
from nbtrain.jobs.backends.local import LocalBackend
from nbtrain.jobs.checks.existing_run import refuse_foreign
from nbtrain.jobs.control.control import ask_pause, ask_priority, asked_pause, asked_priority, cancel
from nbtrain.jobs.submission.clone import clone, submit_clone
from nbtrain.jobs.submission.submit import prepare_job, resume, submit
from nbtrain.jobs.supervisor.summary import write_summary
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.run.status_text import progress_line
from nbtrain.monitor.runs.runs import list_runs
from nbtrain.monitor.status.notes import change_notes
from nbtrain.monitor.status.status_records import read_status
from tests.messages import lacks


@pytest.fixture(autouse=True)
def no_supervisor(monkeypatch):
    """Write all files of a submission but start nothing; the test process plays the supervisor."""

    def become_the_supervisor(backend, job):
        record = JobRecord.read(job.job_json)
        record.state, record.supervisor = "RUNNING", ProcessIdentity.of(os.getpid())
        record.write(job.job_json)

    monkeypatch.setattr(LocalBackend, "submit", become_the_supervisor)


def end(job, state="SUCCEEDED", step=0):
    """Write the end of a job and a heartbeat at `step`."""
    record = JobRecord.read(job.job_json)
    record.state, record.cause, record.ended_at = state, "it ended", time.time()
    record.write(job.job_json)
    if step:
        Heartbeat(0, 0, ProcessIdentity.of(os.getpid()), time.time(), step, "end", time.time()).write(
            job.heartbeat(0)
        )


def test_a_new_run_is_written_down(tiny):
    """For a new run, run.json, config.yaml and plan.json are written, and three JSON files for its job."""
    config = tiny(**{"backend.env": {"HOME_MADE": "1"}})
    job = submit(config)
    run = job.run
    assert load_resolved(run.config_yaml) == load_resolved(job.config_yaml) == config
    identity = run.record()
    assert (identity["name"], identity["parent"], identity["schema_version"]) == ("tiny", None, 1)
    assert files.read_json(run.plan_json)
    record = JobRecord.read(job.job_json)
    assert (record.run_id, record.world_size, record.command) == (
        identity["run_id"],
        1,
        ["-m", "nbtrain.train"],
    )
    environment = files.read_json(job.environment_json)
    assert environment["backend_env"] == {"HOME_MADE": "1"}
    assert environment["packages"]["torch"].startswith("2.")
    assert len(environment["dataset_sha256"]) == len(environment["tokenizer_sha256"]) == 64
    assert files.read_json(job.deepspeed_json)["train_micro_batch_size_per_gpu"] == 2
    assert [event["message"] for event in read_events(job)] == ["submitted; trains from the beginning"]
    # The folder can be moved: no record holds its own absolute path.
    written = [run.run_json, run.config_yaml, run.plan_json, *job.path.glob("*.json")]
    assert not [path.name for path in written if str(run.path.parent) in path.read_text()]


def test_an_active_run_gives_its_job(tiny, caplog):
    """Submitting an active run returns its job; a changed setting is reported as ignored."""
    job = submit(tiny())
    assert submit(tiny()).job_id == job.job_id
    assert caplog.records == []
    assert submit(tiny(**{"batch.train_tokens": 2560})).job_id == job.job_id
    assert "tiny is active; this change is not applied: batch.train_tokens: 1280 -> 2560" in caplog.text
    assert resume(job.run).job_id == job.job_id
    assert job.run.job_ids() == [job.job_id]


def test_a_setting_of_the_run_that_the_next_submission_does_not_name_is_no_change(tiny, caplog):
    """If a later submission omits an override, that is not reported as a change."""
    job = submit(tiny(**{"batch.max_steps": 5, "labels.team": "nlp"}))
    assert submit(tiny()).job_id == job.job_id
    assert caplog.messages == []
    assert submit(tiny(**{"batch.max_steps": 6})).job_id == job.job_id
    assert caplog.messages == [
        "tiny is active; this change is not applied: batch.max_steps: 5 -> 6",
        "To apply the change, run `nbtrain cancel tiny`, then `nbtrain resume tiny batch.max_steps=VALUE`.",
    ]


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_an_ended_run_is_resumed_as_a_new_job(tiny, state, caplog):
    """Submitting a run that has ended creates a new job with the same run id; the changed settings are
    recorded as an event.
    """
    job = submit(tiny())
    end(job, state, step=5)
    second = submit(tiny(**{"batch.train_tokens": 2560, "logging.log_interval_steps": 1}))
    assert second.job_id > job.job_id
    assert JobRecord.read(second.job_json).run_id == JobRecord.read(job.job_json).run_id
    messages = [event["message"] for event in read_events(second) if event["kind"] == "config"]
    assert messages == [
        "changed on resume: batch.train_tokens: 1280 -> 2560",
        "changed on resume: logging.log_interval_steps: 10 -> 1",
    ]
    (said,) = caplog.messages
    changes = [
        "batch.train_tokens: 1280 -> 2560  (override batch.train_tokens=2560)",
        "logging.log_interval_steps: 10 -> 1  (override logging.log_interval_steps=1)",
    ]
    assert said.startswith("tiny: trains from the beginning ")
    assert [line.strip() for line in said.splitlines()[1:]] == changes


def test_the_next_job_keeps_the_priority_that_the_queue_was_told(tiny):
    """A priority that was changed in the queue applies to the next job too, until backend.priority is
    changed.
    """
    job = submit(tiny())
    end(job, "CANCELLED")
    assert asked_priority(job) is None
    ask_priority(job, 9)
    run = job.run
    for again in (lambda: resume(run), lambda: submit(tiny())):
        job = again()
        assert asked_priority(job) == 9
        assert "the job keeps the priority 9 that was set with `nbtrain queue`" in [
            event["message"] for event in read_events(job)
        ]
        end(job, "CANCELLED")
    for again in (
        lambda: resume(run, {"backend.priority": 0}),
        lambda: resume(run, {"backend": {"priority": 0}}),
        lambda: submit(tiny(**{"backend.priority": 0})),
    ):
        ask_priority(run.newest_job(), 9)
        job = again()
        assert asked_priority(job) is None
        end(job, "CANCELLED")


def test_a_log_without_a_line_says_why_and_which_job_has_one(tiny, capsys):
    job = submit(tiny())
    assert main(["logs", "tiny"]) == 0
    said = f"tiny: the log of rank 0 in job {job.job_id} is empty; the job is RUNNING.\n"
    assert capsys.readouterr() == ("", said)
    job.log(0, 0).write_text("a step\n")
    end(job, "CANCELLED")
    second = submit(tiny())
    end(second, "CANCELLED")
    assert main(["logs", "tiny"]) == 0
    said = capsys.readouterr().err
    assert said.startswith(f"tiny: the log of rank 0 in job {second.job_id} is empty; the job is CANCELLED")
    assert said.endswith(f"`nbtrain logs tiny --job {job.job_id}`.\n")
    assert main(["logs", "tiny", "--job", job.job_id]) == 0
    assert capsys.readouterr() == ("a step\n", "")


def test_a_dash_is_no_file_and_a_torn_record_ends_its_sentence(tiny, capsys):
    assert main(["submit", tiny()._run or "tiny.yaml", "--dry-run", "-"]) == 2
    assert (
        "ConfigError: --dry-run - must name a file, for example --dry-run job.sh; nothing was written.\n"
        in capsys.readouterr().err
    )
    job = submit(tiny())
    job.job_json.write_text('{"x')
    with pytest.raises(RecordError, match=r":1: not JSON: Unterminated string starting \(column 2\)$"):
        JobRecord.read(job.job_json)
    assert main(["delete", "tiny", "--yes"]) == 5
    assert "(column 2). It is therefore unknown whether a job is active." in capsys.readouterr().err


def test_a_label_of_the_command_line_is_its_text(tiny):
    [run_yaml] = [str(tiny()._run)]
    config = load(run_yaml, ["labels.x=1", "labels.y=true", "labels.z=1.50"])
    assert config.labels == {"x": "1", "y": "true", "z": "1.50"}


def test_a_password_stands_in_the_configuration_alone(tiny):
    """A password in the configuration is written to config.yaml, but to no other file of the run."""
    end(submit(tiny()), "FAILED", step=5)
    second = submit(tiny(**{"backend.env": {"HTTPS_PROXY": "http://me:s3cret@proxy:8"}}))
    events = [event for event in read_events(second) if event["kind"] == "config"]
    assert events[0]["now"] == {"HTTPS_PROXY": "http://***@proxy:8"}
    files_with_it = [
        path.name
        for path in second.run.path.rglob("*")
        if path.is_file() and "s3cret" in path.read_text(errors="replace")
    ]
    assert files_with_it == ["config.yaml"]
    assert load_resolved(second.config_yaml).backend.env == {"HTTPS_PROXY": "http://***@proxy:8"}


def test_a_clock_that_is_ahead_blocks_no_run(tiny, caplog):
    """A job whose id comes from a clock that was ahead does not block the run: the id of the next job sorts
    after it.
    """
    job = submit(tiny())
    end(job, "FAILED")
    job.path.rename(job.path.with_name("20991231-235959-abcd"))
    second = resume(job.run)
    assert second.job_id.startswith("21000101-000000-")
    assert "id comes from a clock that is " in caplog.text
    [warning] = [event["message"] for event in read_events(second) if event["kind"] == "warning"]
    assert lacks(warning, f"this job gets the id {second.job_id}", "Synchronize the clocks") == []


def test_a_submission_that_was_cut_off_is_submitted_anew(tiny):
    """If a submission was killed before its supervisor started, its lock is free, and the run can be
    submitted again.
    """
    job = submit(tiny())
    record = JobRecord.read(job.job_json)
    record.state, record.supervisor = "QUEUED", None
    record.write(job.job_json)
    with job.run.locked():
        assert submit(tiny()).job_id == job.job_id
    second = submit(tiny())
    assert second.job_id > job.job_id
    record = JobRecord.read(job.job_json)
    assert (record.state, record.cause) == (
        "FAILED",
        "the submission was interrupted before the supervisor started",
    )
    record = JobRecord.read(second.job_json)
    record.state, record.supervisor = "QUEUED", None
    record.write(second.job_json)
    assert cancel(second)[0] == "FAILED"


def test_a_job_that_is_not_heard_of_is_joined_with_a_warning(tiny, caplog):
    """Submitting a run whose supervisor, on another host, is silent returns its job with a warning."""
    job = submit(tiny())
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity(7, 1, "its boot", "other")
    record.write(job.job_json)
    os.utime(job.job_json, (time.time() - 300, time.time() - 300))
    assert resume(job.run).job_id == job.job_id
    (said,) = [message for message in caplog.messages if message.startswith("tiny: its supervisor ")]
    parts = ("5 min 0 s ago", "on other.", "`nbtrain cancel --now tiny`", "`nbtrain resume tiny`")
    assert [part for part in parts if part not in said] == []


def test_a_longer_run_stretches_its_decay(tiny):
    """If lr_decay_tokens is null, a longer training changes the learning rate, and a warning says so."""
    job = submit(tiny())
    end(job, "CANCELLED", step=5)
    job.run.checkpoint(5).mkdir(parents=True)
    files.write_json(job.run.checkpoint_manifest(5), {"schema_version": 2, "files": {}})
    second = submit(tiny(**{"batch.train_tokens": 2560}))
    *events, schedule = [event["message"] for event in read_events(second)]
    assert events == [
        "submitted; trains from the checkpoint of step 5",
        "changed on resume: batch.train_tokens: 1280 -> 2560",
    ]
    assert (
        lacks(schedule, "lr_schedule.lr_decay_tokens is null ", "2,560 tokens; before the change, over 1,280")
        == []
    )


def test_no_whole_checkpoint_is_refused_before_launch(tiny):
    """A run that has no complete checkpoint is rejected with every reason; a measurement needs no
    checkpoint.
    """
    job = submit(tiny())
    end(job, "FAILED", step=8)
    for step, manifest in ((4, "{"), (8, None)):
        job.run.checkpoint(step).mkdir(parents=True)
        if manifest:
            job.run.checkpoint_manifest(step).write_text(manifest)
    with pytest.raises(SubmitError) as refused:
        resume(job.run)
    reasons = ("global_step8: manifest.json is missing", "global_step4: manifest.json is not JSON.")
    assert lacks(refused, "output/tiny/model: ", *reasons, "Remove the folder", "or restore") == []
    reasons = str(refused.value)
    with pytest.raises(SubmitError) as refused:
        resume(job.run, {"mode": "eval"})
    assert str(refused.value) == reasons
    assert job.run.job_ids() == [job.job_id]


def test_the_command_line_fails_where_settings_are_not_applied(tiny, workspace, capsys):
    """The command fails if the active run has other settings; with the same settings it returns the run's
    job.
    """
    job = submit(tiny())
    yaml = str(workspace / "tiny.yaml")
    assert cli.main(["submit", yaml]) == 0
    assert cli.main(["submit", "--wait", yaml, "batch.train_tokens=2560"]) == 6
    assert "tiny: its job is active and keeps its settings; nothing was submitted." in capsys.readouterr().err
    assert cli.main(["resume", "tiny"]) == 0
    assert cli.main(["resume", "tiny", "batch.train_tokens=2560"]) == 6
    assert job.run.job_ids() == [job.job_id]
    end(job, "FAILED", step=5)
    assert cli.main(["submit", yaml, "batch.train_tokens=2560"]) == 0
    assert len(job.run.job_ids()) == 2


def test_less_than_what_is_done_is_refused(tiny):
    """A training limit before the newest checkpoint is rejected with both steps, because nothing would be
    trained.
    """
    job = submit(tiny())
    end(job, "CANCELLED", step=5)
    job.run.checkpoint(5).mkdir(parents=True)
    files.write_json(job.run.checkpoint_manifest(5), {"schema_version": 2, "files": {}})
    with pytest.raises(SubmitError) as refused:
        resume(job.run, ["batch.max_steps=3"])
    assert lacks(refused, "override batch.max_steps=3: ", "step 5.", "another `name:`") == []


@pytest.mark.parametrize("reached, loss", [(5, 4.5), (7, None)])
def test_a_resumed_job_without_an_attempt_is_at_its_checkpoint(tiny, reached, loss):
    """A resumed job in the queue shows the step of its checkpoint, also after it was cancelled in the
    queue.
    """
    before = submit(tiny())
    end(before, "LOST")
    beat = Heartbeat(0, 0, ProcessIdentity.of(os.getpid()), time.time(), reached, "train", time.time())
    beat.progress = TrainingProgress(10, 1280, 128 * reached, 8 * reached, loss=4.5)
    beat.write(before.heartbeat(0))
    run = before.run
    run.checkpoint(5).mkdir(parents=True)
    known = {"schema_version": 2, "files": {}, "consumed_tokens": 640, "validation_loss": 5.25}
    files.write_json(run.checkpoint_manifest(5), known)
    job = resume(run)
    words = f"step 5/10 | tokens 640/1.28k | {'loss 4.5000 | ' if loss else ''}validation 5.2500"
    assert progress_line(run) == f"tiny RUNNING | {words}"
    shown = RunView(run).describe().to_dict()["progress"]
    assert (shown["step"], shown["fraction"], shown["loss"], shown["phase"]) == (5, 0.5, loss, None)
    assert ["step", "5 / 10"] in RunView(run).describe().texts["line"]
    end(job, "CANCELLED")
    assert progress_line(run) == f"tiny CANCELLED | {words} | it ended"
    [line] = list_runs()
    assert line == read_status(run, time.time())
    assert (line.step, line.total_steps, line.loss, line.validation_loss) == (5, 10, loss, 5.25)
    summary = write_summary(run, tiny(), JobRecord.read(job.job_json), None)
    assert [summary[key] for key in ("steps", "consumed_tokens", "consumed_samples")] == [5, 640, 40]
    assert (summary["loss"], summary["last_validation_loss"]) == (loss, 5.25)


def test_perf_is_not_measured_within_a_training(tiny):
    """mode=perf is rejected for a run that has been trained, because its metrics would be mixed with the
    training's.
    """
    job = submit(tiny())
    end(job, "CANCELLED", step=5)
    job.run.checkpoint(5).mkdir(parents=True)
    files.write_json(job.run.checkpoint_manifest(5), {"schema_version": 2, "files": {}})
    with pytest.raises(SubmitError) as refused:
        resume(job.run, ["mode=perf"])
    assert lacks(refused, "override mode=perf: ", "step 5.", "another `name:`") == []


def trained_then_evaluated(tiny, step):
    job = submit(tiny())
    job.run.checkpoint(step).mkdir(parents=True)
    files.write_json(job.run.checkpoint_manifest(step), {"schema_version": 2, "files": {}})
    end(job, "SUCCEEDED" if step == 10 else "CANCELLED", step=step)
    evaluated = resume(job.run, ["mode=eval"])
    assert load_resolved(job.run.config_yaml).mode == "eval"
    end(evaluated)
    return job.run


def test_to_go_on_after_an_evaluation_is_to_train(tiny, caplog):
    """Resuming a run after an evaluation trains it, and the changed mode is reported."""
    caplog.set_level("INFO", "nbtrain")
    run = trained_then_evaluated(tiny, 4)
    third = resume(run)
    assert load_resolved(run.config_yaml).mode == "full"
    assert [event["message"] for event in read_events(third) if event["kind"] == "config"] == [
        "changed on resume: mode: eval -> full"
    ]
    modes = ("(mode: eval)", "(mode: full)", "`nbtrain resume tiny mode=eval`")
    assert [] in [lacks(said, *modes) for said in caplog.messages]
    end(third, "CANCELLED", step=5)
    end(resume(run, {"mode": "eval"}))
    resume(run, ["mode=eval"])
    assert load_resolved(run.config_yaml).mode == "eval"


def test_after_an_evaluation_of_all_steps_more_must_be_asked_for(tiny):
    run = trained_then_evaluated(tiny, 10)
    with pytest.raises(SubmitError) as refused:
        resume(run)
    commands = ("`nbtrain resume tiny batch.train_tokens=2560`", "`nbtrain resume tiny mode=eval`")
    assert lacks(refused, "output/tiny: all 10 steps are done", *commands) == []
    assert load_resolved(run.config_yaml).mode == "eval"
    resume(run, ["batch.train_tokens=1536"])
    assert (load_resolved(run.config_yaml).mode, load_resolved(run.config_yaml).train_steps) == ("full", 12)


def test_a_run_that_is_finished_and_evaluated_is_still_finished(tiny):
    """A finished run that was evaluated still counts as finished: submitting it is rejected, and a notebook
    shows it.
    """
    run = trained_then_evaluated(tiny, 10)
    before = run.job_ids()
    with pytest.raises(SubmitError) as refused:
        submit(tiny(**{"model.seed": 7}))
    commands = ("tiny batch.train_tokens=2560`, without model.seed,", "clone tiny NEWNAME model.seed=7`")
    change = "\n  model.seed: 1234 -> 7  (override model.seed=7)"
    assert lacks(refused, "output/tiny: this run has succeeded (10 steps).", *commands, change) == []
    for mode in ("full", "eval"):
        assert nb.submit(tiny(mode=mode), finished="open").job.job_id == before[-1]
    assert run.job_ids() == before
    assert submit(tiny(mode="eval")).job_id not in before


def test_a_finished_run_that_was_resumed_with_other_settings_is_opened_by_a_notebook(tiny):
    """A notebook shows a finished run if it has the settings of any of the run's jobs; other settings are
    rejected.
    """
    run = trained_then_evaluated(tiny, 10)
    resume(run, ["batch.train_tokens=1536"])
    end(run.newest_job(), step=12)
    newest = run.job_ids()[-1]
    imported = {"imported_from": [{"file": "job.sh", "sha256": "0" * 64}]}
    for settings in ({}, {"batch.train_tokens": 1536}, imported):
        assert nb.submit(tiny(**settings), finished="open").job.job_id == newest
    for settings in ({"batch.train_tokens": 2560}, {"model.seed": 7}):
        with pytest.raises(SubmitError, match=r"this run has succeeded \(12 steps\)"):
            nb.submit(tiny(**settings), finished="open")
    assert run.job_ids()[-1] == newest


def test_a_run_that_is_evaluated_before_its_end_is_trained_on_by_submit(tiny):
    """The run still counts as unfinished: a notebook says so, and submitting it again trains on."""
    run = trained_then_evaluated(tiny, 4)
    said = nb.open_run("tiny").unfinished
    assert said is not None and lacks(said, "tiny ", "4 of 10 steps", "`nbtrain resume tiny`") == []
    assert nb.open_run("tiny").wait(say=lambda line: None).must_finish() is None
    nb.submit(tiny(), finished="open")
    assert load_resolved(run.config_yaml).mode == "full"
    end(run.newest_job(), step=10)
    assert nb.open_run("tiny").unfinished is None


def test_a_dry_run_is_written_where_its_command_says(tiny, tmp_path, monkeypatch):
    """The directory in the file's command counts, also where NBTRAIN_OUTPUT would name another one."""
    monkeypatch.setattr(LocalBackend, "await_first_word", lambda backend, job: None)
    job = RunDir(tmp_path / "tiny").job("20260101-000000-0000")
    prepare_job(tiny(), job, "an-id")
    assert job.run.record()["run_id"] == "an-id" and job.run.config_yaml.is_file()
    assert job.job_json.is_file() and not RunDir.named("tiny").path.exists()


def test_a_run_keeps_its_name_on_resume(tiny):
    """Resuming a run under another name is rejected, because `nbtrain cancel` would not find it."""
    job = submit(tiny())
    end(job, "CANCELLED")
    with pytest.raises(ConfigError) as refused:
        resume(job.run, ["name=other", "batch.train_tokens=2560"])
    assert lacks(refused, "override name=other: ", "called tiny.", "`nbtrain clone tiny other`") == []
    assert job.run.job_ids() == [job.job_id]
    assert resume(job.run, ["name=tiny"]).job_id != job.job_id


def test_a_clone_of_an_evaluated_run_trains(tiny):
    assert clone(trained_then_evaluated(tiny, 4), "twice").mode == "full"


def test_after_a_measurement_the_mode_must_be_said(tiny):
    """To resume a run after a measurement, the mode must be set, because it could mean measuring again or
    training.
    """
    job = submit(tiny(mode="perf"))
    end(job)
    with pytest.raises(SubmitError) as refused:
        resume(job.run)
    commands = ("`nbtrain resume tiny mode=full`", "`nbtrain resume tiny mode=perf`")
    assert lacks(refused, "output/tiny: ", "(mode: perf)", *commands) == []
    end(resume(job.run, ["mode=perf"]))
    resume(job.run, ["mode=full"])
    assert load_resolved(job.run.config_yaml).mode == "full"


def test_a_checkpoint_on_the_nodes_alone_is_one_to_evaluate_and_none_to_measure_over(tiny):
    """A checkpoint that is only on the nodes' disks can be evaluated, and prevents a measurement."""
    job = submit(tiny())
    end(job, "FAILED")
    LocalSaves([LocalSave(4, "id4", ["a"], job.job_id, 0, 0.0)]).keep(job.run)
    with pytest.raises(SubmitError, match=r"mode = perf measures .* has been trained to step 4\."):
        submit(tiny(mode="perf"))
    assert load_resolved(submit(tiny(mode="eval")).config_yaml).mode == "eval"


def test_an_evaluation_needs_a_checkpoint(tiny):
    with pytest.raises(SubmitError) as refused:
        submit(tiny(mode="eval"))
    assert lacks(refused, "override mode=eval: ", "output/tiny has none.", "mode: full.") == []


def test_data_made_anew_is_refused(tiny):
    """Resuming is rejected if the data was prepared again, because the sample order in the checkpoint depends
    on it.
    """
    job = submit(tiny())
    end(job, "CANCELLED", step=5)
    job.run.checkpoint(5).mkdir(parents=True)
    manifest = {"schema_version": 2, "files": {}, "data_state": {"dataset_sha256": "0" * 64}}
    files.write_json(job.run.checkpoint_manifest(5), manifest)
    with pytest.raises(SubmitError) as refused:
        resume(job.run)
    now = read_run_data(tiny()).dataset_sha256
    hashes = ("output/tiny was trained on dataset mock with SHA-256 000000000000...", f" now {now[:12]}...")
    assert lacks(refused, *hashes, "step 5", "Restore the dataset", "another `name:`") == []
    assert job.run.job_ids() == [job.job_id]
    manifest["data_state"]["dataset_sha256"] = now
    files.write_json(job.run.checkpoint_manifest(5), manifest)
    assert resume(job.run).job_id != job.job_id


def test_a_submission_that_the_disk_does_not_take_leaves_no_job(tiny, monkeypatch):
    """If a submission fails because the disk is full, no job folder is left, because such a job could never
    be cancelled.
    """

    def full(record, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JobRecord, "write", full)
    with pytest.raises(
        SubmitError, match=r"^output/tiny cannot be written: No space left on device\. Nothing"
    ):
        submit(tiny())
    assert RunDir.named("tiny").job_ids() == []


def test_a_lost_run_is_resumed(tiny):
    """If the supervisor of a job is gone, the job counts as ended, and the run is resumed."""
    job = submit(tiny())
    record = JobRecord.read(job.job_json)
    record.supervisor.start_ticks += 1
    record.write(job.job_json)
    assert submit(tiny()).job_id != job.job_id


def test_a_finished_run_is_refused(tiny):
    """Submitting a finished run is rejected; the message suggests a resume with more tokens, or a clone."""
    job = submit(tiny())
    end(job, step=10)
    with pytest.raises(SubmitError) as refused:
        submit(tiny())
    command = "`nbtrain resume tiny batch.train_tokens=2560`."
    clone_it = "`nbtrain clone tiny NEWNAME`."
    assert lacks(refused, "output/tiny: this run has succeeded (10 steps).", command, clone_it) == []
    with pytest.raises(SubmitError) as refused:
        resume(job.run)
    assert lacks(refused, "output/tiny: all 10 steps are done", command) == []
    assert "mode=eval" not in str(refused.value)
    second = resume(job.run, ["batch.train_tokens=2560"])
    assert load_resolved(second.run.config_yaml).batch.train_tokens == 2560


def test_a_notebook_opens_a_finished_run_with_its_own_settings_only(tiny):
    """A notebook that is executed again shows the finished run; other settings, including the backend's, are
    rejected.
    """
    job = submit(tiny())
    end(job, step=10)
    assert nb.launch(tiny()).job.job_id == job.job_id
    elsewhere = tiny(**{"backend.kind": "hosts", "backend.hosts.hosts": ["a"]})
    with pytest.raises(SubmitError) as refused:
        nb.launch(elsewhere)
    assert "tiny: this run has succeeded (10 steps). To continue training: " in str(refused.value)
    assert "\n  backend.kind: local -> hosts" in str(refused.value)
    assert job.run.job_ids() == [job.job_id]


def test_an_active_run_is_not_joined_from_another_backend(tiny):
    """An active run is not joined by a submission to another backend; a dry run still prints the script."""
    job = submit(tiny())
    elsewhere = tiny(**{"backend.kind": "slurm"})
    said = (
        "backend.kind = slurm, but the job of output/tiny is RUNNING on backend local, and a run can have "
        "only one job at a time. Nothing was submitted. To move the run to slurm, run `nbtrain cancel tiny` "
        "and submit again; it continues from its newest checkpoint. To train a separate run there, set "
        "another `name:`. To see what would be sent, use a dry run."
    )
    for start in (nb.launch, submit, lambda config: resume(job.run, {"backend.kind": "slurm"})):
        with pytest.raises(SubmitError) as refused:
            start(elsewhere)
        assert str(refused.value).partition(": ")[2] == said
    assert "#SBATCH" in str(nb.launch(elsewhere, dry_run=True))
    assert nb.launch(tiny()).job.job_id == job.job_id
    assert job.run.job_ids() == [job.job_id]


def test_a_launch_explains_a_shortage_and_refuses_a_mistake(tiny, monkeypatch):
    """nb.launch explains a shortage of devices without raising an error; any other problem is an error."""
    problems = [shortage(tiny(), "", "the run needs 8 GPUs.")]
    monkeypatch.setattr("nbtrain.jobs.submission.submit.preflight", lambda launch: problems)
    assert isinstance(nb.launch(tiny()), NotLaunched)
    problems.append(mistake(tiny(), "", "host a is a name that nothing resolves.", "Correct the name."))
    with pytest.raises(SubmitError) as refused:
        nb.launch(tiny())
    assert "host a is a name that nothing resolves. Correct the name." in str(refused.value)
    assert not RunDir.named("tiny").exists()


def test_a_finished_trial_names_its_own_limit(tiny):
    """If a run ended at batch.max_steps, the message says to remove that limit to continue."""
    job = submit(tiny(**{"batch.max_steps": 2}))
    end(job, step=2)
    with pytest.raises(SubmitError, match=r"`nbtrain resume tiny batch.max_steps=null`"):
        submit(tiny())
    assert resume(job.run, ["batch.max_steps=null"]).job_id != job.job_id


def test_another_training_is_refused_by_name(tiny):
    """If a run has been trained, a change of its architecture, tokenizer or data is rejected, with the place
    of each change.

    Its layout may change.
    """
    job = submit(tiny())
    end(job, "FAILED", step=5)
    before = job.run.config_yaml.read_text()
    with pytest.raises(SubmitError) as refused:
        submit(
            tiny(
                **{
                    "model.num_layers": 4,
                    "data.seed": 7,
                    "parallel.zero_stage": 2,
                    "batch.train_tokens": 2560,
                }
            )
        )
    first, *changes, last = str(refused.value).splitlines()
    assert first.startswith("output/tiny contains a run that was trained with other settings")
    assert changes == [
        "  model.num_layers: 2 -> 4  (override model.num_layers=4)",
        "  data.seed: 1234 -> 7  (override data.seed=7)",
    ]
    assert lacks(last, "Nothing was written.", "`nbtrain resume tiny`", "another `name:`") == []
    assert job.run.config_yaml.read_text() == before
    assert job.run.job_ids() == [job.job_id]


def test_before_the_first_step_everything_may_change(tiny):
    """If a run failed before its first step, all settings may change."""
    job = submit(tiny())
    end(job, "FAILED")
    second = submit(tiny(**{"model.num_layers": 4}))
    assert load_resolved(second.run.config_yaml).model.num_layers == 4


def test_changes_are_fields(tiny):
    """Changes are listed by field; a mapping with free keys is listed as one value."""
    changes = changes_between(tiny(), tiny(**{"backend.env": {"A": "1"}, "model.compile": True}))
    assert [(change.key, change.before, change.now, change.bound) for change in changes] == [
        ("model.compile", False, True, False),
        ("backend.env", {}, {"A": "1"}, False),
    ]


def test_the_layout_is_free(tiny):
    """The layout and micro-batch size may change, because a checkpoint can be loaded in any layout."""
    other = {
        "parallel.data_parallel_size": 2,
        "parallel.tensor_parallel_size": 2,
        "parallel.zero_stage": 3,
        "parallel.activation_checkpointing.granularity": "full",
        "batch.micro_batch_size": 1,
    }
    changes = changes_between(tiny(), tiny(**other))
    assert {change.key for change in changes} >= set(other)
    assert not any(change.bound for change in changes)


def test_weights_of_packed_sources_are_bound(tiny):
    """The weights of packed sources may not change, because they determine the order of the data."""

    def run(*weights):
        sources = [{"kind": "alpaca", "path": "tasks.json", "weight": weight} for weight in weights]
        return tiny(**{"data.packing": "best_fit", "data.sources": sources})

    bound = [
        (change.key, change.before, change.now)
        for change in changes_between(run(1.0, 1.0), run(1.0, 0.5))
        if change.bound
    ]
    assert bound == [("data.sources.1.weight", 1.0, 0.5)]


def test_packing_by_default_is_the_packing_that_it_stands_for(tiny):
    """Writing the default packing explicitly is not a change; another kind of packing is."""
    data = {"data.sources": [{"kind": "alpaca", "path": "tasks.json"}]}
    default, written = tiny(**data), tiny(**data, **{"data.packing": "best_fit"})
    assert changes_between(default, written) == []
    (change,) = changes_between(default, tiny(**data, **{"data.packing": "stream"}))
    assert change.bound and str(change) == "data.packing: best_fit -> stream"


def test_a_foreign_folder_is_refused(tiny):
    """If the folder of the run contains other files, it is left unchanged, and the message lists them."""
    run = RunDir.named("tiny")
    run.path.mkdir(parents=True)
    (run.path / "thesis.tex").write_text("precious")
    with pytest.raises(SubmitError) as refused:
        submit(tiny())
    assert lacks(refused, "output/tiny ", "contains thesis.tex.", "another `name:`") == []
    assert [path.name for path in run.path.iterdir()] == ["thesis.tex"]


def test_a_run_that_another_process_is_making_is_not_foreign(workspace, monkeypatch):
    """While another process creates a run, its folder is not taken for a foreign one, although its first file
    may be incomplete or missing.
    """
    run = RunDir.named("tiny")
    run.path.mkdir(parents=True)
    (run.path / ".run.json.50234721.tmp").write_text("{")
    refuse_foreign(run)
    records = iter([None, {"schema_version": SCHEMA_VERSION, "name": "tiny"}])
    run.run_json.write_text("{}")
    monkeypatch.setattr(RunDir, "record", lambda self: next(records))
    refuse_foreign(run)
    assert list(records) == []


def test_the_folder_of_another_run_is_refused(tiny):
    """A folder that contains a run with another name is rejected, with the commands that resume or clone that
    run.
    """
    job = submit(tiny())
    end(job, "FAILED", step=3)
    job.run.path.rename(job.run.path.with_name("renamed"))
    with pytest.raises(SubmitError) as refused:
        submit(tiny(name="renamed"))
    place, fixes = "output/renamed ", ("rename the folder to 'tiny'", "`nbtrain clone tiny NEWNAME`")
    assert lacks(refused, place, "its run.json has the name 'tiny'", *fixes) == []


def test_executed_notebooks_do_not_make_a_folder_foreign(tiny):
    """Notebooks that papermill wrote to a run's folder before the submission are accepted there."""
    (RunDir.named("tiny").notebooks).mkdir(parents=True)
    assert submit(tiny()).run.exists()


def test_every_problem_is_reported_at_once(tiny, monkeypatch):
    """SubmitError lists all problems that preflight found, and nothing is written."""
    monkeypatch.setenv("NBTRAIN_DATA", str(RunDir.named("tiny").path.parent / "nowhere"))
    with pytest.raises(SubmitError) as refused:
        submit(tiny(**{"resources.device": "gpu", "resources.gpus_per_node": 1}))
    message = str(refused.value)
    assert message.startswith("tiny cannot start here:\n")
    assert "needs 1 GPU, but" in message
    assert "text_document.bin: no such file" in message
    nowhere = RunDir.named("tiny").path.parent / "nowhere"
    assert f"\nnbtrain looks for data in {nowhere}. The workspace is " in message
    assert message.endswith("\nNothing was started and nothing written.")
    assert not RunDir.named("tiny").path.exists()


def test_clone_makes_a_run_with_a_parent(tiny):
    """A clone is a separate run that records its parent.

    When it is submitted, it trains from the beginning.
    """
    job = submit(tiny())
    config = clone(job.run, "sibling", ["lr_schedule.lr=2e-3"])
    assert (config.name, config.lr_schedule.lr) == ("sibling", 0.002)
    target = RunDir.named("sibling")
    assert target.record()["parent"] == job.run.record()["run_id"]
    assert target.job_ids() == []
    states = {entry.name: entry.state for entry in list_runs()}
    assert states == {"tiny": "RUNNING", "sibling": "NEW"}
    assert submit(config).run.record() == target.record()
    with pytest.raises(
        SubmitError, match=r"output/sibling already exists\. Choose another name for the clone."
    ):
        clone(job.run, "sibling")
    with pytest.raises(ConfigError, match="name"):
        clone(job.run, "Not A Name")


def test_a_clone_that_is_refused_leaves_its_name_free(tiny):
    run = submit(tiny()).run
    with pytest.raises(SubmitError, match=r"Nothing was started and nothing written\."):
        submit_clone(run, "sibling", {"init_from": "/nonexistent/run"})
    assert not RunDir.named("sibling").path.exists()
    job, config = submit_clone(run, "sibling", {"lr_schedule.lr": 2e-3})
    assert (job.run.name, config.lr_schedule.lr) == ("sibling", 0.002)
    assert job.run.record()["parent"] == run.record()["run_id"]


def test_a_clone_that_the_disk_does_not_take_leaves_its_name_free(tiny, monkeypatch):
    run, write = submit(tiny()).run, files.write_text

    def full(path, content):
        if path.name == "config.yaml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_text", full)
        with pytest.raises(SubmitError) as refused:
            clone(run, "sibling")
    assert lacks(refused, "output/sibling ", "No space left on device.", "NBTRAIN_OUTPUT") == []
    assert clone(run, "sibling").name == "sibling"


def test_a_clone_has_the_labels_that_are_shown(tiny):
    """A clone has the original run's labels, including later changes; labels passed to clone take
    precedence.
    """
    given = {
        "labels": {"team": "nlp", "stage": "trial", "owner": "ann"},
        "backend.kubernetes.labels": {"cost": "7"},
    }
    run = submit(tiny(**given)).run
    change_notes(run, labels={"stage": "final", "owner": None, "seen": "yes"})
    assert clone(run, "second").labels == {"team": "nlp", "stage": "final", "seen": "yes"}
    assert clone(run, "third", ["labels.team=vision"]).labels["team"] == "vision"


def test_resume_of_nothing(workspace):
    """A run that does not exist cannot be resumed or cloned."""
    with pytest.raises(
        SubmitError, match=r"output/none: there is no run to resume. `nbtrain runs` lists 0 runs"
    ):
        resume(RunDir.named("none"))
    with pytest.raises(SubmitError, match="output/none: there is no run to clone"):
        clone(RunDir.named("none"), "other")


def test_runs_are_listed_newest_first(tiny):
    """`nbtrain runs` lists runs with state, step and cause, newest first; without runs, it says how to start
    one.
    """
    assert str(list_runs()).startswith("No runs under ")
    first = submit(tiny(name="first"))
    end(first, "FAILED", step=5)
    time.sleep(0.01)
    submit(tiny(name="second"))
    entries = list_runs()
    assert [(entry.name, entry.state, entry.step) for entry in entries] == [
        ("second", "RUNNING", None),
        ("first", "FAILED", 5),
    ]
    assert entries[1].to_dict()["cause"] == "it ended"
    table = str(entries).splitlines()
    assert table[0].split()[:3] == ["NAME", "STATE", "STEP"]
    assert table[2].split()[:3] == ["first", "FAILED", "5"]


def test_an_unreadable_identity_is_refused(tiny):
    """If run.json is not valid JSON, the submission is rejected, and the file is not overwritten."""
    run = RunDir.named("tiny")
    run.path.mkdir(parents=True)
    run.run_json.write_text("{")
    with pytest.raises(SubmitError, match=r"output/tiny/run.json cannot be read: .*run.json:1: not JSON"):
        submit(tiny())


def test_rules_come_before_everything(tiny, workspace):
    """A configuration that breaks a rule is a ConfigError, whatever is in the output directory."""
    config = load(workspace / "tiny.yaml", {"batch.global_batch_size": 7}, check=False)
    with pytest.raises(ConfigError, match="must be a multiple of micro_batch_size"):
        submit(config)


def test_a_finished_run_that_is_submitted_changed_says_what_differs(tiny):
    """When a finished run is rejected, the message lists each changed field, or none if nothing was
    changed.
    """
    end(submit(tiny()), step=10)
    with pytest.raises(SubmitError) as refused:
        submit(tiny(**{"batch.train_tokens": 2560, "model.seed": 7}))
    commands = (
        "`nbtrain resume tiny batch.train_tokens=2560`, without model.seed,",
        "`nbtrain clone tiny NEWNAME model.seed=7 batch.train_tokens=2560`",
    )
    assert lacks(refused, *commands) == []
    assert str(refused.value).splitlines()[-2:] == [
        "  model.seed: 1234 -> 7  (override model.seed=7)",
        "  batch.train_tokens: 1280 -> 2560  (override batch.train_tokens=2560)",
    ]
    for same, typed in (({}, ""), ({"backend.priority": 5}, " backend.priority=5")):
        with pytest.raises(SubmitError) as refused:
            submit(tiny(**same))
        assert str(refused.value).endswith(f"`nbtrain clone tiny NEWNAME{typed}`.")


def test_the_commands_for_a_finished_run_carry_its_changes(tiny):
    """When a finished run is rejected, the suggested commands can be copied as they are and apply the
    requested changes.
    """
    end(job := submit(tiny(**{"batch.max_steps": 5})), step=5)
    changed = {
        "lr_schedule.lr": 1e-4,
        "backend.env": {"NOTE": "two words"},
        "backend.debug": ["nccl", "distributed"],
        "evaluation.eval_interval_steps": 3,
    }
    asked, before = tiny(**changed), load_resolved(job.run.config_yaml)
    with pytest.raises(SubmitError) as refused:
        submit(asked)
    commands = dict(re.findall(r"`nbtrain (\w+) tiny ([^`]*)`", str(refused.value)))
    assert changes_between(load(before, shlex.split(commands["resume"])), asked) == []
    name, *words = shlex.split(commands["clone"])
    assert changes_between(load(before, words), asked) == [] and name == "NEWNAME"
    with pytest.raises(SubmitError) as refused:
        resume(job.run, changed)
    assert f"To continue training: `nbtrain resume tiny {commands['resume']}`." in str(refused.value)


def test_a_paused_run_that_is_submitted_changed_says_what_differs(tiny, workspace, capsys):
    """Submitting a paused run with changed settings starts and ends nothing; each way to continue is shown as
    a command.
    """
    ask_pause(job := submit(tiny()), True)
    for start in (submit, nb.submit, nb.launch):
        with pytest.raises(SubmitError) as refused:
            start(tiny(**{"lr_schedule.lr": 1e-4, "logging.log_interval_steps": 7}))
        first, *lines = str(refused.value).splitlines()
        assert first.startswith("output/tiny: its job is paused")
        assert lines[:2] == [
            f"  lr_schedule.lr: {show(tiny().lr_schedule.lr)} -> 0.0001  (override lr_schedule.lr=0.0001)",
            "  logging.log_interval_steps: 10 -> 7  (override logging.log_interval_steps=7)",
        ]
        settings = "lr_schedule.lr=0.0001 logging.log_interval_steps=7"
        assert [re.findall("`(.*)`", line) for line in lines[3:]] == [
            ["nbtrain resume tiny"],
            [f"nbtrain resume tiny {settings}"],
            ["nbtrain cancel tiny"],
            [f"nbtrain clone tiny NEWNAME {settings}"],
        ]
    assert (
        cli.main(["submit", str(workspace / "tiny.yaml"), "logging.log_interval_steps=7"])
        == SubmitError.exit_code
    )
    assert "its job is paused, and the submission would change its settings" in capsys.readouterr().err
    assert asked_pause(job) and job.run.job_ids() == [job.job_id]
    assert submit(tiny()).job_id == job.job_id and not asked_pause(job)


def test_a_paused_job_without_its_settings_is_refused(tiny):
    """Without config.yaml the settings cannot be compared, so the paused job does not continue."""
    ask_pause(job := submit(tiny()), True)
    job.run.config_yaml.unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        submit(tiny(**{"lr_schedule.lr": 1e-4}))
    assert asked_pause(job)


def test_a_paused_job_that_succeeds_as_it_is_ended_is_finished(tiny, monkeypatch):
    """A pausing job may make its last step before it is ended for a new one: no job without steps follows."""
    ask_pause(job := submit(tiny()), True)
    monkeypatch.setattr("nbtrain.jobs.submission.submit.cancel", end)
    with pytest.raises(SubmitError, match="all 10 steps are done, and the run ends at step 10"):
        resume(job.run, {"logging.log_interval_steps": 7})
    assert job.run.job_ids() == [job.job_id]


def test_a_paused_job_is_not_ended_for_one_that_could_not_start(tiny, monkeypatch):
    """A paused job is not cancelled if the new job that would replace it cannot start."""
    ask_pause(job := submit(tiny()), True)
    found = [mistake(tiny(), "", "./typo.sh was not found.", "Correct notify.command.")]
    monkeypatch.setattr("nbtrain.jobs.submission.submit.preflight", lambda launch: found)
    monkeypatch.setattr("nbtrain.jobs.submission.submit.cancel", lambda job: pytest.fail("it was cancelled"))
    with pytest.raises(SubmitError) as refused:
        resume(job.run, {"logging.log_interval_steps": 7})
    parts = ("tiny cannot start here:", "  ./typo.sh was not found. Correct notify.command.", "Nothing was")
    assert lacks(refused, *parts) == []
    assert asked_pause(job) and JobRecord.read(job.job_json).state == "RUNNING"
    assert not [event for event in read_events(job) if "while it was paused" in event["message"]]


def test_a_dry_run_says_why_this_machine_would_not_take_the_run(tiny):
    """A dry run prints the reason why submit would reject the run on this machine."""
    over = {"resources.nodes": 2, "parallel.data_parallel_size": 2, "batch.global_batch_size": 8}
    said = str(nb.launch(tiny(**over), dry_run=True))
    assert "tiny was not launched: this machine is too small.\n" in said
    assert lacks(said, "resources.nodes=2: ", "needs 2 machines", "Set backend.kind to") == []
    assert "\nAfter changing that, run:\n  nbtrain submit " in said
    with pytest.raises(SubmitError, match="the run needs 2 machines"):
        submit(tiny(**over))


def test_a_finished_trial_is_trained_on_by_as_much_as_was_typed(tiny):
    """After a trial, the advice is to train the requested number of further steps, or the rest of the
    training.
    """
    end(submit(tiny(**{"batch.max_steps": 4})), step=4)
    for asked, advised in ((8, "8"), (4, "null"), (2, "null")):
        with pytest.raises(SubmitError, match=rf"`nbtrain resume tiny batch\.max_steps={advised}`"):
            submit(tiny(**{"batch.max_steps": asked}))


def test_the_place_of_a_default_is_no_line_of_its_section(tiny):
    before = tiny(**{"backend.priority": 5, "backend.elastic": True})
    [change] = changes_between(before, tiny(**{"backend.elastic": True}))
    assert (change.key, change.where) == ("backend.priority", "default")


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED"])
def test_a_quicker_submission_is_joined(tiny, monkeypatch, caplog, state):
    """If another submission of the same run is faster while this one makes its checks, this one returns the
    other's job.
    """
    others = []

    def meanwhile(launch, reads_data):
        if not others:
            others.append(None)
            others[0] = submit(tiny())
            if state == "SUCCEEDED":
                end(others[0])
        return []

    monkeypatch.setattr("nbtrain.jobs.submission.submit.preflight", meanwhile)
    job = submit(tiny(**{"logging.log_interval_steps": 3}))
    assert (job.job_id, job.run.job_ids()) == (others[0].job_id, [others[0].job_id])
    said, fix = caplog.messages
    assert lacks(said, "tiny ", "not applied: logging.log_interval_steps: 10 -> 3") == []
    assert "`nbtrain resume tiny logging.log_interval_steps=VALUE`" in fix


RACER = """
import os, sys, time
from pathlib import Path
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.config.load import load
from nbtrain.config.yaml_source import show
from nbtrain.dataset.of_run import read_run_data
from nbtrain.jobs.backends.local import LocalBackend
from nbtrain.jobs.submission.submit import submit
parent = ProcessIdentity.of(os.getppid())
def become(backend, job):
    time.sleep(0.3)
    record = JobRecord.read(job.job_json)
    record.state, record.supervisor = "RUNNING", parent
    record.write(job.job_json)
LocalBackend.submit = become
config = load(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(submit(config).job_id)
"""


@pytest.mark.slow
def test_two_processes_that_submit_at_once_get_one_job(tiny, workspace):
    """If two processes submit the same run at the same time, both get the same job."""
    tiny()
    command = [sys.executable, "-c", RACER, str(workspace / "tiny.yaml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    ids = [racer.communicate(timeout=600)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert RunDir.named("tiny").job_ids() == [ids[0]] == [ids[1]]
