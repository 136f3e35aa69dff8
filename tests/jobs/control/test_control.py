"""Cleaning up after jobs that were killed, and actions on jobs that have ended; no job is started here."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nbtrain.base import files
from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.attempt import leftovers
from nbtrain.jobs.backends.supervised_here import SupervisedHere
from nbtrain.jobs.control import control
from nbtrain.jobs.machine import processes
from nbtrain.jobs.submission.submit import resume
from nbtrain.jobs.supervisor.journal import Displaced, Journal
from nbtrain.monitor.run.advice import advice
from nbtrain.monitor.status.status_records import lost_words


@pytest.fixture
def job(workspace):
    """Create a job of the run `run` that was RUNNING when its supervisor died."""
    run = RunDir.named("run")
    job = JobDir(run, new_job_id())
    job.make_folders()
    files.write_json(
        run.run_json, {"schema_version": 1, "run_id": "id", "name": "run", "parent": None, "created_at": 1}
    )
    gone = ProcessIdentity.of(os.getpid())
    gone.start_ticks += 1
    JobRecord(job.job_id, "id", "run", "RUNNING", time.time(), 1, supervisor=gone).write(job.job_json)
    return job


@pytest.fixture
def leftover(job):
    """Start a process that has the job's marker and ignores TERM."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
        "time.sleep(3600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "NBTRAIN_JOB": job.job_id}, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_clean_lists_and_removes(job, leftover):
    """Clean lists and removes processes, temporary files, damaged checkpoints and incomplete submissions.

    Logs and complete checkpoints are kept.
    """
    run = job.run
    (job.path / "heartbeat" / ".0.json.12.tmp").write_text("{")
    run.checkpoint(4).mkdir(parents=True)
    (run.checkpoint(4) / "state.pt").write_bytes(b"1234")
    files.write_json(
        run.checkpoint_manifest(4), {"schema_version": 2, "files": {"state.pt": {"bytes": 4, "sha256": "0"}}}
    )
    run.checkpoint(8).mkdir()
    (run.checkpoint(8) / "state.pt").write_bytes(b"12")
    files.write_json(
        run.checkpoint_manifest(8), {"schema_version": 2, "files": {"state.pt": {"bytes": 4, "sha256": "0"}}}
    )
    run.checkpoint(9).mkdir()
    job.log(0, 0).write_text("last words")
    cut = run.jobs / "20250101-000000-abcd"
    cut.mkdir()

    listed = control.clean(run, dry_run=True)
    assert listed == [
        f"process {leftover.pid}: left by an ended job",
        f"jobs/{job.job_id}/heartbeat/.0.json.12.tmp: temporary file",
        "model/global_step8: torn checkpoint",
        "model/global_step9: torn checkpoint",
        "jobs/20250101-000000-abcd: interrupted submission",
    ]
    assert leftover.poll() is None
    assert cut.exists()
    assert control.clean(run) == listed
    assert leftover.wait(600) == -9
    assert run.checkpoint_steps() == [4]
    assert job.log(0, 0).read_text() == "last words"
    assert control.clean(run) == []


def test_a_file_that_anyone_may_be_writing_is_not_swept(job):
    """A supervisor removes temporary files that ranks left, but not one that `nbtrain pause` may still be
    writing.
    """
    names = ("control/.pause.json.0a1b2c3d.tmp", ".engine.json.4711.tmp", "control/.ack.json.0a1b2c3d.tmp")
    pause, engine, ack = paths = [job.path / name for name in names]
    for path in paths:
        path.write_text("{")
    assert leftovers.sweep(job.run, None) == [f"jobs/{job.job_id}/{names[2]}"]
    assert pause.exists() and engine.exists() and not ack.exists()
    for path in (pause, engine):
        os.utime(path, (time.time() - 3601, time.time() - 3601))
    assert len(leftovers.sweep(job.run, None)) == 2


def test_clean_warns_of_last_copies(job):
    """Clean warns before it removes damaged checkpoints if the run has no other checkpoint."""
    (job.run.checkpoint(8)).mkdir(parents=True)
    [line] = control.clean(job.run, dry_run=True)
    assert line == (
        "model/global_step8: torn checkpoint; the run has no complete checkpoint, so this is the last copy "
        "of its training"
    )


def test_clean_leaves_an_active_run_alone(job):
    """Clean changes nothing while the supervisor is alive or the run's lock is held."""
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    with pytest.raises(JobError, match=r"output/run: a job is active, .* `nbtrain cancel run`\.$"):
        control.clean(job.run)
    record.state = "FAILED"
    record.write(job.job_json)
    with job.run.locked(), pytest.raises(JobError, match="a job is active"):
        control.clean(job.run)
    assert control.clean(job.run) == []


def test_cancel_of_a_lost_job_ends_its_processes(job, leftover):
    """Cancelling a lost job finds its processes by their marker, and ends them with TERM and then KILL."""
    state, cause = control.cancel(job, now=True)
    assert state == "LOST"
    assert "died without a message while the job was RUNNING" in cause
    assert leftover.wait(600) == -9
    assert processes.marked_pids([job.job_id]) == []


def test_a_job_without_job_json_was_cut_off_or_is_being_submitted(job, monkeypatch):
    """A job without job.json is LOST if the run's lock is free; otherwise it is still being submitted."""
    record = JobRecord.read(job.job_json)
    job.job_json.unlink()
    assert control.cancel(job) == ("LOST", "the submission was interrupted before job.json was written")
    with job.run.locked():
        with pytest.raises(JobError) as refused:
            control.cancel(job, wait_seconds=0)
        assert str(refused.value) == (
            f"output/run: job {job.job_id} is being submitted by another process; try again."
        )
        monkeypatch.setattr(control.time, "sleep", lambda seconds: record.write(job.job_json))
        assert control.cancel(job, now=True)[1].startswith("its supervisor (pid ")


def test_a_pid_that_was_given_away_is_not_signalled(job):
    """If another process has reused the pid, which its start time shows, it gets no signal."""
    with pytest.raises(JobError, match=r"job \S+ is LOST; only an active job can save"):
        control.request_save(job)


@pytest.mark.parametrize("mode", ["full", "perf"])
def test_a_finished_run_has_nothing_to_pause_or_save(job, mode):
    """Pausing or saving a finished run is rejected; the message contains the command that continues its
    training.
    """
    files.write_text(job.run.config_yaml, to_yaml(load("gpt-tiny", {"name": "run", "mode": mode})))
    JobRecord(job.job_id, "id", "run", "SUCCEEDED", time.time(), 1).write(job.job_json)
    for act, what in ((control.pause, "be paused"), (control.request_save, "save")):
        with pytest.raises(JobError) as refused:
            act(job)
        said = str(refused.value)
        assert "is SUCCEEDED; " in said and f"can no longer {what}." in said
        assert ("To continue training: `nbtrain resume run batch.train_tokens=" in said) == (mode == "full")


def test_the_advice_to_resume_says_where_the_run_goes_on(job, capsys):
    """The advice to resume says where the run would continue: from its newest checkpoint, or from the
    beginning.
    """
    run = job.run
    files.write_text(run.config_yaml, to_yaml(load("gpt-tiny", {"name": "run"})))

    def said():
        assert cli.main(["cancel", "run"]) == 0
        printed = capsys.readouterr().out
        with pytest.raises(JobError) as refused:
            control.request_save(job)
        advice = control.advice_to_resume(run)
        assert printed == f"run: LOST. {advice}\n"
        assert str(refused.value).endswith(f" {advice}")
        return advice

    assert said() == "`nbtrain resume run` starts from the beginning."
    run.checkpoint(8).mkdir(parents=True)
    assert said() == "`nbtrain resume run` finds no complete checkpoint to continue from."
    files.write_json(run.checkpoint_manifest(8), {"schema_version": 2, "files": {}})
    assert said() == "`nbtrain resume run` continues from its newest checkpoint."
    # Nothing to continue from, and a resume without the mode is refused.
    files.write_text(run.config_yaml, to_yaml(load("gpt-tiny", {"name": "run", "mode": "perf"})))
    with pytest.raises(SubmitError, match="its last job only measured"):
        resume(run)
    assert control.advice_to_resume(run) == "`nbtrain resume run mode=perf` measures again."
    assert lost_words(job, time.time()) == "`nbtrain resume run mode=perf` measures again"
    said = advice(run, "FAILED", None, None)
    assert said.endswith("nothing to resume; `nbtrain resume run mode=perf` measures again.")


def test_a_mode_that_saves_nothing_cannot_be_asked_to(job):
    """A save request is rejected if the job's mode never saves."""
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    files.write_text(job.run.config_yaml, to_yaml(load("gpt-tiny", {"mode": "perf"})))
    with pytest.raises(JobError, match=r"job \S+ runs with mode: perf, which saves no checkpoint\."):
        control.request_save(job)


def test_a_job_that_waits_has_nothing_to_save(job):
    """A save request to a waiting job is rejected with every backend, because there is no rank that could
    read it.
    """
    record = JobRecord.read(job.job_json)
    record.state, record.cause = "QUEUED", "waits for 2 cores"
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    files.write_text(job.run.config_yaml, to_yaml(load("gpt-tiny", {"name": "run"})))
    with pytest.raises(JobError) as refused:
        control.request_save(job)
    assert str(refused.value) == (
        f"output/run: job {job.job_id} is QUEUED: waits for 2 cores. None of its ranks is running, so there "
        "is nothing to save yet."
    )
    assert not job.control_ask.exists() and not job.control_request.exists()


def test_the_answer_to_an_earlier_request_is_not_taken_for_this_one(job, monkeypatch):
    """The answer to an earlier request, which stays after the request is gone, is not mistaken for the answer
    to a new one.
    """
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    files.write_text(job.run.config_yaml, to_yaml(load("gpt-tiny", {"name": "run"})))
    answers = [{"request_id": number, "action": "save", "step": 100 * number} for number in (1, 2)]
    files.write_json(job.control_ack, answers[0])
    monkeypatch.setattr(SupervisedHere, "save", lambda backend, job: True)
    monkeypatch.setattr(control.time, "sleep", lambda seconds: files.write_json(job.control_ack, answers[1]))
    assert control.request_save(job, wait_seconds=60) == 200


def test_a_supervisor_whose_run_has_a_newer_job_writes_nothing(job):
    """A supervisor writes nothing if its run has a newer job; an incomplete submission does not count."""
    journal = Journal(job)
    journal.take_over()
    newer = job.run.job("99991231-000000-abcd")
    newer.make_folders()
    journal.set_state("RESTARTING")
    JobRecord(newer.job_id, "id", "run", "QUEUED", time.time(), 1).write(newer.job_json)
    for write in (lambda: journal.set_state("FAILED"), lambda: journal.set_cause("anything")):
        with pytest.raises(Displaced, match="the run has continued as job 99991231-000000-abcd"):
            write()
    assert JobRecord.read(job.job_json).state == "RESTARTING"


@pytest.mark.slow
def test_a_supervisor_leaves_a_run_that_has_a_newer_job(job):
    """A supervisor exits immediately if its run has a newer job; it neither waits for that job nor trains."""
    newer = job.run.job("99991231-000000-abcd")
    newer.make_folders()
    JobRecord(newer.job_id, "id", "run", "RUNNING", time.time(), 1).write(newer.job_json)
    supervisor = [sys.executable, "-m", "nbtrain.jobs.supervisor", "--foreground"]
    with job.run.locked():
        left = subprocess.run([*supervisor, str(job.run.path), job.job_id], timeout=600, capture_output=True)
    assert left.returncode == 0, left.stderr
    record = JobRecord.read(job.job_json)
    assert (record.state, record.cause) == (
        "CANCELLED",
        "another job of this run was submitted: 99991231-000000-abcd",
    )
    assert not job.run.summary_json.exists()


def test_wait_returns_at_its_timeout(job):
    """wait returns the current state when its timeout is over, and reports changes as they happen."""
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    seen = []
    assert control.wait(job, 0.3, lambda state, cause: seen.append(state)) == ("RUNNING", None)
    assert seen == ["RUNNING"]


@pytest.fixture
def deaf(job):
    """Record a stopped process as the supervisor of the running job."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(process.pid, signal.SIGSTOP)
    identity = ProcessIdentity.of(process.pid)
    JobRecord(job.job_id, "id", "run", "RUNNING", time.time(), 1, supervisor=identity).write(job.job_json)
    job.run.config_yaml.write_text(to_yaml(load("gpt-tiny")))
    yield identity
    process.kill()
    process.wait()


def test_a_job_of_another_user_is_refused_in_words(open_output, another_user, job, deaf):
    """Cancelling, saving or pausing another user's job is rejected with the owner's name, and no file is
    left.
    """
    before = sorted(job.path.rglob("*"))
    for action in (control.cancel, control.request_save, control.pause):
        with another_user(), pytest.raises(JobError) as refused:
            action(job)
        assert "run: the run belongs to root, and this user may not act on it: " in str(refused.value)
        assert str(refused.value).endswith(". Ask root, or use that account.")
    assert sorted(job.path.rglob("*")) == before


def test_a_supervisor_that_answers_nothing_is_named(job, deaf):
    """If a supervisor does not respond, the message contains the command that kills it; after --now, it does
    not suggest --now again.
    """
    with pytest.raises(JobError) as refused:
        control.cancel(job, now=True, wait_seconds=0.1)
    assert str(refused.value).endswith(
        f"s after the stop request; its supervisor does not respond. Run `kill -9 {deaf.pid}` on "
        f"{deaf.host} to end the supervisor, then `nbtrain cancel --now run` to end its ranks."
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("RUNNING", "it may still be saving; `nbtrain cancel --now run` kills it."),
        ("QUEUED", "its supervisor does not respond. Run `nbtrain cancel --now run`."),
    ],
)
def test_a_job_that_does_not_stop_in_time_is_said_to_save_only_if_ranks_run(job, deaf, state, words):
    JobRecord(job.job_id, "id", "run", state, time.time(), 1, supervisor=deaf).write(job.job_json)
    with pytest.raises(JobError) as refused:
        control.cancel(job, wait_seconds=0.1)
    assert f" is still {state}, " in str(refused.value)
    assert str(refused.value).endswith(f"s after the stop request; {words}")
