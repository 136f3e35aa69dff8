"""Actions of the supervisor between attempts. The attempts are not run; the test gives their verdicts."""

import errno
import os
import time
from dataclasses import astuple, replace
from types import SimpleNamespace

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.node_records import Ask
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    ControlRequest,
    Heartbeat,
    JobRecord,
    Preemption,
    ProcessIdentity,
    ResumeCertificate,
    Rollback,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.config.load.attempt import attempt_config
from nbtrain.config.load.edits import with_values
from nbtrain.dataset.samples.state import DataState
from nbtrain.jobs.attempt.rank_wrapper import WITHOUT_WORD
from nbtrain.jobs.attempt.reserve import Reserve
from nbtrain.jobs.attempt.verdict import Verdict
from nbtrain.jobs.backends.local import LocalLauncher
from nbtrain.jobs.control import control
from nbtrain.jobs.supervisor import journal as journal_module
from nbtrain.jobs.supervisor import supervise
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.pause import paused_before
from nbtrain.jobs.supervisor.recovery import (
    NO_ROOM_BYTES,
    in_vain,
    recovery_from,
    saved_nothing,
    with_the_disk,
)
from nbtrain.jobs.supervisor.signals import DEADLINE, PAUSE, REQUEST, SignalRequests
from nbtrain.jobs.supervisor.summary import total_seconds
from nbtrain.jobs.supervisor.supervise import Supervision, run_attempts, wait_for_devices
from nbtrain.monitor.status.status_records import asked_of, job_with_end
from tests.messages import lacks


class Told:
    """The supervision of a job on disk whose attempts end with the given `verdicts`, one after the other."""

    def __init__(self, config):
        self.job = JobDir(RunDir.named("tiny"), new_job_id())
        self.job.make_folders()
        JobRecord(self.job.job_id, "id", "tiny", "QUEUED", time.time(), world_size=1).write(self.job.job_json)
        self.journal = Journal(self.job)
        self.journal.config = config
        self.journal.reserve = Reserve(self.job.path, "supervisor")
        self.it = Supervision(self.job, config, LocalLauncher(self.job, []), SignalRequests(), self.journal)
        self.verdicts = []

    def run(self):
        return run_attempts(self.it, self.run_attempt)

    def run_attempt(self, it):
        self.journal.record.attempts.append(AttemptRecord(self.journal.record.attempt, time.time(), 1, 1))
        return self.verdicts.pop(0)

    def events(self, kind):
        return [event for event in read_events(self.job) if event["kind"] == kind]

    def change(self, section, **values):
        changed = getattr(self.it.config, section).model_copy(update=values)
        self.it.config = self.it.config.model_copy(update={section: changed})


@pytest.fixture
def supervised(tiny, workspace):
    return Told(tiny(**{"backend.restart_backoff_seconds": 0.01, "backend.max_restarts": 3}))


def failure(signature=None, retry=True):
    return Verdict("FAILED", "rank 0 failed", retry=retry, signature=signature, step=3)


def test_it_stops_when_the_restarts_are_used_up(supervised):
    """With max_restarts 3, the job ends after four attempts with that cause, and each restart is recorded as
    an event.
    """
    supervised.verdicts = [replace(failure(), kind="killed") for _ in range(9)]
    verdict = supervised.run()
    supervised.journal.end(verdict)
    assert (verdict.state, verdict.cause) == (
        "FAILED",
        "rank 0 failed; not tried again: backend.max_restarts = 3 is used up",
    )
    assert len(supervised.verdicts) == 5
    restarts = supervised.events("restart")
    assert [event["wait_seconds"] for event in restarts] == [0.01, 0.02, 0.04]
    record = JobRecord.read(supervised.job.job_json)
    assert record.state == "FAILED" and {attempt.reason for attempt in record.attempts} == {"killed"}
    ended = [attempt.given_up for attempt in record.attempts]
    assert ended == ["", "", "", "backend.max_restarts = 3 is used up"]


def test_the_wait_stays_finite(supervised):
    """The delay before a restart is limited to 300 s, also when 2.0 ** restarts would overflow."""
    supervised.change("backend", max_restarts=1_000_000)
    waits = [
        recovery_from(failure(), None, made, supervised.it.config, vain=made) for made in (1024, 999_999)
    ]
    assert [recovery.wait_seconds for recovery in waits] == [300.0, 300.0]


def test_a_run_that_saved_a_checkpoint_restarts_at_once(supervised):
    """The wait begins again after an attempt that saved a checkpoint, which is followed without any."""
    config = supervised.it.config
    attempts = [AttemptRecord(number, 1.0, 1, 1, step) for number, step in enumerate((None, 0, 4, 4, 4))]
    counts = [saved_nothing(attempts[: number + 1], saved) for number, saved in enumerate((0, 4, 4, 4, 9))]
    assert counts == [1, 0, 1, 2, 0]
    assert saved_nothing([], None) == 0
    waits = [recovery_from(failure(), None, 0, config, vain=vain).wait_seconds for vain in (0, 1, 2, 3)]
    assert waits == [0.0, 0.01, 0.02, 0.04]
    # A device that failed, or a machine, may need a while.
    device = replace(failure(), kind="device")
    assert recovery_from(device, None, 0, config, vain=0).wait_seconds == 0.01
    for changed in ({"elastic": True}, {"kind": "slurm"}):
        supervised.change("backend", **changed)
        assert recovery_from(failure(), None, 0, supervised.it.config, vain=0).wait_seconds == 0.01
        supervised.it.config = config


def test_the_same_failure_twice_ends_it(supervised):
    """If the same failure happens twice at the same step, the job ends; another failure in between resets the
    count.
    """
    supervised.verdicts = [failure((3, "boom")), failure((5, "boom")), failure((5, "boom")), failure()]
    assert supervised.run().cause.endswith("not tried again: the previous attempt failed in the same way")
    assert len(supervised.verdicts) == 1


def test_no_second_attempt_where_it_cannot_help(supervised):
    """A verdict with retry=False ends the job immediately."""
    supervised.verdicts = [failure(retry=False), failure()]
    assert supervised.run().cause == "rank 0 failed"
    assert len(supervised.verdicts) == 1


def test_a_stop_while_waiting_is_obeyed(supervised):
    """If the job is cancelled between two attempts, it ends as CANCELLED, and the cause includes the failure
    before it.
    """
    supervised.verdicts = [failure(), failure()]
    supervised.it.requests.stop = True
    verdict = supervised.run()
    assert (verdict.state, verdict.cause) == (
        "CANCELLED",
        "stopped on request while the job waited to restart after a failure: rank 0 failed",
    )


def test_lost_work_is_counted(supervised):
    """The event of a restart contains the number of steps and tokens lost since the newest checkpoint."""
    supervised.journal.reached_step = 9
    supervised.verdicts = [failure(retry=True), Verdict("SUCCEEDED", "done")]
    supervised.run()
    event = supervised.events("error")[0]
    assert (event["step"], event["checkpoint_step"], event["lost_tokens"]) == (9, 0, 9 * 8 * 16)
    assert event["message"].endswith("no checkpoint yet: 9 steps (1,152 tokens) are lost")


def test_a_full_disk_does_not_end_the_watch(supervised, monkeypatch):
    """If a full disk prevents a state from being written, it is skipped, and the ranks are still watched."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    supervised.journal.set_state("RUNNING")
    assert supervised.journal.record.state == "RUNNING"


@pytest.mark.parametrize("removed", [True, False])
def test_a_new_supervisor_counts_on_from_the_request_that_was_done(supervised, removed):
    """A new supervisor continues the numbers of requests, because rank 0 obeys each number only once."""
    job = supervised.job
    supervised.journal.request("stop", "the time limit of its allocation")
    files.write_json(job.control_ack, {"request_id": 1, "action": "stop", "step": 4, "time": 1.0})
    if removed:
        job.control_request.unlink()
    later = Journal(job)
    for number in (2, 3):
        later.request("save", "requested")
        assert ControlRequest.read(job.control_request).request_id == number


# --- going back -----------------------------------------------------------------------------------


def bad_step(step, first, last, stopped=False):
    state = "CANCELLED" if stopped else "FAILED"
    return Verdict(
        state,
        f"step {step}: the loss is nan",
        retry=not stopped,
        step=step,
        kind="rollback",
        bad_samples=(first, last),
    )


def checkpoint(run, step, consumed, skipped=()):
    folder = run.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(b"x")
    state = DataState(1, "9,1,0", "megatron", "0" * 64, 1000, consumed, skipped)
    manifest = {
        "schema_version": 2,
        "files": {"state": {"bytes": 1, "sha256": "0"}},
        "data_state": state.to_dict(),
    }
    files.write_json(folder / "manifest.json", manifest)


def test_a_rollback_restarts_at_once_and_is_no_restart(supervised):
    """A rollback restarts immediately, does not count as a restart, and records the samples to skip."""
    checkpoint(supervised.job.run, 4, 32, ((8, 16),))
    supervised.verdicts = [bad_step(6, 48, 56), Verdict("SUCCEEDED", "done")]
    supervised.journal.reached_step = 6
    assert supervised.run().cause == "done"
    assert supervised.journal.record.restarts == 0
    (entry,) = Rollback.read_all(supervised.job.run.rollbacks_json)
    # The checkpoint is at position 40: 32 samples were trained and 8 skipped before.
    assert (entry.step, entry.checkpoint_step, entry.first, entry.last) == (6, 4, 40, 56)
    (reported,) = supervised.events("rollback")
    lost = "2 steps (256 tokens) since the checkpoint of step 4"
    parts = ("step 6: the loss is nan; ", "returns to step 4 and skips samples 40 to 55", lost)
    assert lacks(reported["message"], *parts) == []


def test_a_rollback_without_a_checkpoint_goes_to_the_start(supervised):
    supervised.verdicts = [bad_step(2, 8, 16), Verdict("SUCCEEDED", "done")]
    supervised.run()
    (entry,) = Rollback.read_all(supervised.job.run.rollbacks_json)
    assert (entry.checkpoint_step, entry.first, entry.last) == (0, 0, 16)
    message = supervised.events("rollback")[0]["message"]
    assert "returns to the start and skips samples 0 to 15; no checkpoint yet" in message


def test_rollbacks_have_a_limit_of_their_own(supervised):
    """The number of rollbacks within the window is limited by max_skipped_steps, independently of
    restarts.
    """
    supervised.change("stability", max_skipped_steps=2, loss_spike_window_steps=10)
    supervised.verdicts = [bad_step(step, 8 * step, 8 * step + 8) for step in (21, 30, 31, 33, 34)]
    verdict = supervised.run()
    assert verdict.state == "FAILED"
    limit = ("3 rollbacks within 10 steps", "stability.max_skipped_steps = 2")
    assert lacks(verdict.cause, "step 33: the loss is nan; ", *limit, "lower lr_schedule.lr") == []
    assert len(supervised.verdicts) == 1


def test_a_rollback_in_vain_is_not_made_over_and_over(supervised):
    """The job ends after three rollbacks to the same checkpoint, if none of them got further."""
    checkpoint(supervised.job.run, 4, 32)
    supervised.verdicts = [bad_step(step, 8 * step, 8 * step + 8) for step in (6, 8, 8, 7, 8)]
    verdict = supervised.run()
    fixes = ("lower lr_schedule.lr", "remove that checkpoint")
    assert lacks(verdict.cause, "step 7: the loss is nan; ", "3 attempts from step 4 ", *fixes) == []
    assert len(supervised.verdicts) == 1


def test_only_rollbacks_of_one_job_to_one_checkpoint_are_in_vain():
    """Rollbacks count together only if the same job returns to the same checkpoint without getting
    further.
    """

    def entries(*places):
        return [Rollback(job, 0, 0.0, step, saved, 0, 8, "nan") for job, saved, step in places]

    assert in_vain(entries(("a", 4, 6))) == 1
    assert in_vain(entries(("a", 4, 6), ("a", 4, 6), ("b", 4, 6))) == 1
    assert in_vain(entries(("a", 0, 6), ("a", 4, 6), ("a", 4, 6))) == 2
    assert in_vain(entries(("a", 4, 6), ("a", 4, 7), ("a", 4, 6))) == 2


def test_a_stop_does_not_forget_the_bad_samples(supervised):
    """If the job is stopped during a rollback, it ends as CANCELLED, and the next job still skips the bad
    samples.
    """
    supervised.verdicts = [bad_step(6, 48, 56, stopped=True)]
    assert supervised.run().state == "CANCELLED"
    assert len(Rollback.read_all(supervised.job.run.rollbacks_json)) == 1


# --- a full disk ----------------------------------------------------------------------------------


class Disk:
    """A replacement for shutil in supervise.py: each call returns the next number of free bytes, and then the
    last one again.
    """

    def __init__(self, *free):
        self.looks = list(free)

    def disk_usage(self, path):
        free = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return type("Usage", (), {"free": free, "total": 1 << 40})


def full_disk():
    return Verdict("FAILED", "rank 0 failed: the disk is full", retry=True, kind="disk")


def test_it_waits_for_room(supervised, monkeypatch):
    """If the disk is full, the supervisor waits until a checkpoint fits, with a single event, and the job
    then continues.
    """
    monkeypatch.setattr(supervise, "shutil", Disk(0, 0, 1 << 20, 1 << 30))
    monkeypatch.setattr(supervise, "DISK_POLL_SECONDS", 0.01)
    supervised.verdicts = [full_disk(), Verdict("SUCCEEDED", "done")]
    assert supervised.run().cause == "done"
    (warning,) = supervised.events("warning")
    parts = ("up to 600 s for free disk space", "80.6 MiB is needed", "but only 0 B is free")
    assert lacks(warning["message"], *parts) == []


def test_a_rank_without_a_word_beside_a_full_disk_could_not_write_it():
    """If a rank ended without a message and the disk is full, the disk is the cause; with free space it is
    not.
    """
    silent = Verdict(
        "FAILED", f"rank 0 failed: exit code 1 {WITHOUT_WORD}", retry=True, signature=(3, "x"), step=3
    )
    seen = with_the_disk(silent, 4096)
    assert (seen.kind, seen.signature) == ("disk", None)
    assert seen.cause == "rank 0 failed: exit code 1 without a report; the disk is full"
    assert with_the_disk(failure(), 4096) == failure()
    unrecorded = Verdict("FAILED", "rank 0's wrapper was killed", retry=True, kind="no record")
    assert with_the_disk(unrecorded, 4096).cause == "a rank wrote no exit record; the disk is full"
    assert with_the_disk(silent, NO_ROOM_BYTES - 1).kind == "disk"
    assert with_the_disk(silent, NO_ROOM_BYTES) == silent


def test_a_read_only_disk_is_the_cause_and_ends_the_job():
    """A read-only disk is the cause and ends the job, because a further attempt could not save either.

    A job that was cancelled or that succeeded keeps its state.
    """
    verdict = with_the_disk(failure(), 1 << 30, read_only=True)
    assert (verdict.cause, verdict.retry) == (
        "the run directory is on a read-only disk; rank 0 failed",
        False,
    )
    unrecorded = Verdict("FAILED", "rank 0's wrapper was killed", retry=True, kind="no record")
    assert with_the_disk(unrecorded, 0, read_only=True).cause == (
        "the run directory is on a read-only disk; a rank wrote no exit record"
    )
    done = Verdict("SUCCEEDED", "done")
    assert with_the_disk(done, 1 << 30, read_only=True) == done


def test_the_final_record_of_a_read_only_disk_is_kept_elsewhere(supervised, tmp_path, monkeypatch, capfd):
    """If the disk is read-only, the end of the job is recorded elsewhere; the log says where, and a status
    query finds it.
    """
    supervised.journal.set_state("RUNNING")

    def refuse(*arguments, **more):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_text", refuse)
    monkeypatch.setattr(EventWriter, "write", refuse)
    monkeypatch.setattr(journal_module, "is_read_only", lambda folder: True)
    kept = []
    monkeypatch.setattr(final_record, "keep", lambda record: kept.append(record) or tmp_path / "words")
    supervised.journal.end(failure(retry=False))
    assert [(record.state, record.cause) for record in kept] == [("FAILED", "rank 0 failed")]
    assert JobRecord.read(supervised.job.job_json).state == "RUNNING"
    assert f"FAILED, is recorded in {tmp_path / 'words'}: rank 0 failed" in capfd.readouterr().out


def test_a_damaged_record_of_an_earlier_job_does_not_keep_the_end_from_being_written(supervised):
    """The end of a job is written even if the record of an earlier job is damaged: the summary does not count
    that job, and the certificate needs its record.
    """
    earlier = supervised.job.run.job("20200101-000000-abcd")
    earlier.make_folders()
    files.write_text(earlier.job_json, "{")
    supervised.journal.end(Verdict("SUCCEEDED", "done"))
    assert JobRecord.read(supervised.job.job_json).state == "SUCCEEDED"
    assert files.read_json(supervised.job.run.summary_json)["total_seconds"] >= 0
    [warning] = supervised.events("warning")
    assert warning["message"].startswith(
        f"certificate.json could not be written: {earlier.job_json}:1: not JSON: "
    )


def test_a_lost_job_counts_until_its_last_sign_of_life(supervised):
    run = supervised.job.run
    lost = run.job("20200101-000000-abcd")
    lost.make_folders()
    record = replace(supervised.journal.record, job_id=lost.job_id, created_at=1000.0, stamps={})
    replace(record, state="RUNNING", ended_at=None).write(lost.job_json)
    os.utime(lost.job_json, (4600.0, 4600.0))
    [seconds] = {round(job_with_end(lost, time.time())[0].ended_at - 1000.0)}
    assert seconds == 3600
    this = replace(supervised.journal.record, created_at=0.0, ended_at=10.0, stamps={})
    assert total_seconds(run, this) == pytest.approx(3610.0)


def test_a_certificate_that_does_not_fit_on_the_disk_does_not_keep_the_end_from_being_written(
    supervised, monkeypatch
):
    """A certificate may be larger than the space that is reserved for the records of the end."""

    def refuse(run):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_module, "write_certificate", refuse)
    supervised.journal.end(Verdict("SUCCEEDED", "done"))
    assert JobRecord.read(supervised.job.job_json).state == "SUCCEEDED"
    [warning] = supervised.events("warning")
    assert warning["message"].startswith("certificate.json could not be written: ")


def test_it_does_not_wait_for_ever(supervised, monkeypatch):
    supervised.change("backend", disk_wait_seconds=0.0)
    monkeypatch.setattr(supervise, "shutil", Disk(0))
    supervised.verdicts = [full_disk()]
    parts = ("rank 0 failed: the disk is full", "backend.disk_wait_seconds = 0 (80.6 MiB is needed")
    assert lacks(supervised.run().cause, *parts) == []
    assert supervised.journal.record.restarts == 0, "it was given up before one was made"


# --- fewer or more devices ------------------------------------------------------------------------


@pytest.fixture
def elastic(supervised):
    supervised.change("parallel", data_parallel_size=4)
    supervised.change("backend", elastic=True)
    supervised.change("batch", micro_batch_size=1)
    return supervised


def test_a_restart_takes_as_many_devices_as_there_are(elastic):
    """A restart uses the devices that are left: if 3 of 4 are left, it uses 2, because 8 is not divisible by
    3.

    It uses 4 again when all are back.
    """
    sizes = []

    def run(it):
        sizes.append((it.config.parallel.data_parallel_size, it.config.world_size))
        control.ask_devices(it.job, 3 if len(sizes) == 1 else 4)
        return failure() if len(sizes) < 3 else Verdict("SUCCEEDED", "done")

    assert run_attempts(elastic.it, run).cause == "done"
    assert sizes == [(4, 4), (2, 2), (4, 4)]
    fewer, more = [event["message"] for event in elastic.events("warning")]
    assert lacks(fewer, "3 devices ", "data_parallel_size 4 -> 2, 2 ranks", "batch size remains 8") == []
    assert lacks(more, "4 devices ", "data_parallel_size 2 -> 4, 4 ranks", "batch size remains 8") == []


def test_devices_are_counted_again_after_a_pause(elastic, monkeypatch):
    """Devices are counted again after a pause; if too few are left for one replica of the model, the job
    ends.
    """
    counts = iter([2, 0])

    def stop_within(asked, seconds, meanwhile):
        control.ask_devices(elastic.job, next(counts))
        control.ask_pause(elastic.job, False)
        return False

    monkeypatch.setattr(SignalRequests, "stop_within", stop_within)
    control.ask_pause(elastic.job, True)
    assert run_attempts(elastic.it, left) == Verdict("SUCCEEDED", "done")
    assert (elastic.it.config.parallel.data_parallel_size, elastic.journal.record.restarts) == (2, 0)
    control.ask_pause(elastic.job, True)
    verdict = run_attempts(elastic.it, left)
    assert verdict.state == "FAILED"
    parts = ("stopped on request at step 4; saved; ", "0 devices are left", "one copy of the model needs 1")
    assert lacks(verdict.cause, *parts) == []


def test_machines_are_counted_on_hosts(elastic, monkeypatch):
    """Jobs on hosts count machines: if one of two responds, half of the ranks run, and all run on both when
    both are back.
    """
    resources = elastic.it.config.resources.model_copy(update={"nodes": 2})
    elastic.it.config = elastic.it.config.model_copy(update={"resources": resources})
    elastic.journal.config = elastic.it.config
    usable, seen = [[2, 0], [2, 2]], []
    monkeypatch.setattr(LocalLauncher, "devices", lambda self, config: usable.pop(0))

    def run(it):
        seen.append((it.config.world_size, it.config.resources.nodes))
        return failure() if usable else Verdict("SUCCEEDED", "done")

    assert run_attempts(elastic.it, run).cause == "done"
    assert seen == [(4, 2), (2, 1), (4, 2)]
    parts = ("2 devices ", "data_parallel_size 4 -> 2, 2 ranks on 1 of 2 machines", "batch size remains 8")
    assert lacks(elastic.events("warning")[0]["message"], *parts) == []


def test_no_device_is_no_run(elastic):
    control.ask_devices(elastic.job, 0)
    elastic.verdicts = [failure()]
    parts = ("rank 0 failed; ", "0 devices are left", "one copy of the model needs 1")
    assert lacks(elastic.run().cause, *parts) == []


def test_nobody_asked_on_a_cpu(elastic):
    """An elastic job on CPUs keeps its size, also after the operator no longer specifies a number of
    devices.
    """
    control.ask_devices(elastic.job, None)
    elastic.verdicts = [failure(), Verdict("SUCCEEDED", "done")]
    elastic.run()
    assert elastic.it.config.parallel.data_parallel_size == 4


# --- what is known of each attempt ----------------------------------------------------------------


def test_each_attempt_decides_anew_how_it_saves(supervised):
    """Whether the copy of the states fits is decided for the machine that the attempt starts on, and is
    recorded with the reason.
    """
    journal, config = supervised.journal, supervised.it.config
    large, small = 64 * 2**30, 2**20
    for memory in (large, small):
        changed = with_values(config, {"resources.memory_per_node_bytes": memory})
        journal.attempt_starts(changed)
        journal.record.attempt += 1
    attempts = JobRecord.read(supervised.job.job_json).attempts
    assert [attempt.async_save for attempt in attempts] == [True, False]
    assert " fits into " in attempts[0].saving and " does not fit into 90% of 1.0 MiB " in attempts[1].saving
    ranks = [attempt_config(config, attempt).checkpoint.async_save for attempt in attempts]
    assert ranks == [True, False]


def test_what_was_lost_is_known_once_the_next_one_goes_on(supervised):
    """If the newest checkpoint was damaged, the job resumes from an older one, and the lost work is counted
    from there.
    """
    record = supervised.journal.record
    record.attempts = [
        AttemptRecord(0, 0.0, 1, 1, reached_step=9, lost_tokens=128),
        AttemptRecord(1, 0.0, 1, 1, first_step=8),
    ]
    progress = TrainingProgress(10, 1280, checkpoint_step=4)
    beat = Heartbeat(0, 1, ProcessIdentity.of(os.getpid()), 0.0, 4, "train", 0.0, progress)
    supervised.journal.attempt_trains(beat)
    assert record.attempts[0].lost_tokens == 5 * 8 * 16
    assert (record.resumed_from_step, record.attempts[1].resumed_from_step) == (4, 4)
    assert JobRecord.read(supervised.job.job_json) == record


def test_a_stop_before_an_attempt_leaves_the_one_before_as_it_was(supervised):
    """If the job is stopped before an attempt starts, the record of the previous attempt is not changed."""
    ended = AttemptRecord(0, 1.0, 1, 1, ended_at=500.0, reached_step=9, lost_tokens=128, cause="a pause")
    supervised.journal.record.attempts, supervised.journal.record.attempt = [replace(ended)], 1
    supervised.it.requests.stop = True
    assert run_attempts(supervised.it) == Verdict(
        "CANCELLED", "stopped on request before its ranks were started"
    )
    assert supervised.journal.record.attempts == [ended]


def test_a_job_that_is_handed_over_is_asked_for_nothing(supervised):
    """A job that is handed over to another supervisor shows no pending stop request; otherwise its page would
    say that it stops.
    """
    journal = supervised.journal
    journal.request("stop", "the time limit of its allocation")
    assert asked_of(supervised.job) == "stop"
    journal.hand_over("continues in Slurm job 2")
    assert asked_of(supervised.job) is None


def test_a_job_that_its_engine_starts_again_has_not_ended(supervised):
    """When a preempted job is requeued, the end time that was written with the CANCELLED state is removed."""
    job, record = supervised.job, supervised.journal.record
    record.state = "CANCELLED"
    record.mark("started_at")
    record.mark("ended_at")
    record.write(job.job_json)
    Journal(job).take_over()
    found = JobRecord.read(job.job_json)
    assert (found.ended_at, list(found.stamps)) == (None, ["started_at"])


def test_what_lies_on_the_nodes_disks_is_not_lost(supervised):
    """A checkpoint on the nodes' disks does not count as lost, until the resume report of the next attempt
    says so, and a restart follows at once.
    """
    run, journal, job = supervised.job.run, supervised.journal, supervised.job
    LocalSaves([LocalSave(8, "id", ["a", "b"], job.job_id, 0, 0.0)]).keep(run)
    journal.reached_step = 9
    supervised.verdicts = [failure(retry=True), Verdict("SUCCEEDED", "done")]
    supervised.run()
    event = supervised.events("error")[0]
    assert (event["checkpoint_step"], event["lost_tokens"]) == (8, 8 * 16)
    said = "1 step (128 tokens) since the checkpoint of step 8 on the nodes' own disks is lost"
    assert event["message"].endswith(said)
    assert supervised.events("restart")[0]["wait_seconds"] == 0, "the attempt has saved"
    newest = AttemptRecord(1, 0.0, 1, 1, first_step=8)
    journal.record.attempts = [AttemptRecord(0, 0.0, 1, 1, reached_step=9), newest]
    ResumeCertificate("bit-exact", [], 4, None, 0.0, attempt=1, source="the run directory").write(
        job.resume_json
    )
    journal.attempt_trains(None)
    assert (newest.resumed_from_step, journal.record.attempts[0].lost_tokens) == (4, 5 * 8 * 16)
    journal.end(Verdict("CANCELLED", "stopped"))
    parts = ("stopped; the checkpoint of step 8 is only on the local disks of a, b", "on the same nodes")
    assert lacks(JobRecord.read(job.job_json).cause, *parts) == []


def left(it, cause="stopped on request at step 4; saved"):
    """Return the verdict of an attempt whose ranks exited after a stop request."""
    supervise.poll_requests(it)
    if it.requests.stop:
        it.journal.request("stop", it.requests.why)
    return Verdict("CANCELLED", cause, step=4) if it.requests.stop else Verdict("SUCCEEDED", "done")


def test_a_job_that_passes_its_deadline_has_failed(supervised):
    """A job that exceeds its deadline ends as FAILED with that cause; a job that ends before its deadline is
    not affected.
    """
    supervised.change("backend", deadline_seconds=6000.0)
    supervised.journal.record.mark("started_at")
    assert run_attempts(supervised.it, left).state == "SUCCEEDED"
    supervised.journal.record.stamps["started_at"].seconds -= 7000
    supervised.it.paused_seconds = 2000
    assert run_attempts(supervised.it, left).state == "SUCCEEDED"
    supervised.it.paused_seconds = 0
    verdict = run_attempts(supervised.it, left)
    assert (verdict.state, verdict.step, supervised.it.requests.why) == ("FAILED", 4, DEADLINE)
    assert verdict.cause == ("deadline: backend.deadline_seconds = 6000 has passed; stopped at step 4; saved")
    assert run_attempts(supervised.it, lambda it: Verdict("SUCCEEDED", "done")).state == "SUCCEEDED"


@pytest.mark.parametrize("attempts", [0, 1])
def test_the_wait_in_the_queue_is_no_time_of_the_job(supervised, attempts):
    """The deadline does not include the first wait in the queue, nor a wait after a pause."""
    it = supervised.it
    it.journal.record.started_at = 1.0
    it.journal.record.attempts = [AttemptRecord(0, 1.0, 1, 1)] * attempts
    it.place = SimpleNamespace(wait=lambda asked, config: None)
    # A job begins after its wait in the queue, so a pause during that wait is not subtracted.
    it.paused_seconds = 0.0 if attempts else 60.0
    assert wait_for_devices(it) is None
    assert (it.journal.record.started_at > 1.0, it.paused_seconds > 0) == (not attempts, bool(attempts))


@pytest.mark.parametrize(
    ("states", "preempted_at", "expected"),
    [
        # A supervisor that outlives the pause.
        ([("RUNNING", 1100), ("SUSPENDED", 1200), ("STARTING", 1500), ("RUNNING", 1510)], None, 300),
        # It leaves during the pause: the job is QUEUED until another one starts the ranks, or until now.
        ([("SUSPENDED", 1200), ("QUEUED", 1201), ("STARTING", 1500), ("RUNNING", 1600)], None, 300),
        # Its allocation ended, by the time limit and by a scheduler that then started the job again.
        ([("RUNNING", 1100), ("QUEUED", 1200), ("STARTING", 1500), ("QUEUED", 1900)], None, 400),
        ([("RUNNING", 1100), ("CANCELLED", 1200), ("STARTING", 1500), ("RUNNING", 1510)], None, 300),
        # A wait before a restart counts.
        ([("RUNNING", 1100), ("RESTARTING", 1200), ("STARTING", 1500), ("RUNNING", 1510)], None, 0),
        ([("STARTING", 1100), ("SUSPENDED", 1200), ("QUEUED", 1201)], None, 800),
        # Before its start the job had no time.
        ([("SUSPENDED", 900), ("QUEUED", 950), ("STARTING", 1010)], None, 10),
        # It was without devices for 60 s after a preemption. It was paused for 59 of these seconds.
        ([("QUEUED", 1700), ("SUSPENDED", 1701), ("QUEUED", 1730), ("STARTING", 1760)], 1700.0, 60),
    ],
)
def test_a_later_supervisor_knows_how_long_the_job_had_no_devices(
    supervised, monkeypatch, states, preempted_at, expected
):
    """A pause, and the wait for another allocation, last until the ranks start again; a pause during the wait
    after a preemption counts once.
    """
    record = supervised.journal.record
    record.started_at = 1000.0
    if preempted_at is not None:
        record.preemptions = [Preemption(0, "notice", preempted_at, 0, 0, resumed_at=1760.0)]
    for state, at in states:
        monkeypatch.setattr(time, "time", lambda at=at: float(at))
        supervised.journal.event("state", state, state=state)
    monkeypatch.setattr(time, "time", lambda: 2000.0)
    assert paused_before(supervised.job, record) == expected


def test_the_wait_for_another_allocation_begins_with_the_loss_of_the_last_one(supervised, monkeypatch):
    """The limits of a job exclude the time from the last sign of life of a lost allocation until the next
    attempt; an attempt that has given no sign of life was lost when it began.
    """
    job, journal = supervised.job, supervised.journal
    began = journal.attempt_starts(supervised.it.config).started_at
    Heartbeat(0, 0, ProcessIdentity(1, 1, "boot", "n0"), began + 100, 9, "train", 1.0).write(job.heartbeat(0))
    monkeypatch.setattr(time, "time", lambda: began + 700)
    second = Journal(job)
    second.record.started_at = began
    second.take_over()
    assert (second.record.attempts[0].ended_at, paused_before(job, second.record)) == (began + 100, 600)
    second.record.attempts.append(AttemptRecord(1, began + 750, 1, 1))
    second.record.write(job.job_json)
    monkeypatch.setattr(time, "time", lambda: began + 1000)
    third = Journal(job)
    third.take_over()
    assert paused_before(job, third.record) == 650 + 250
    # A pause during the wait is a part of it.
    for state, at in (("SUSPENDED", began + 200), ("STARTING", began + 700)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        third.event("state", state, state=state)
    monkeypatch.setattr(time, "time", lambda: began + 1000)
    assert paused_before(job, third.record) == 650 + 250


def test_a_deadline_ends_the_wait_for_a_restart(supervised):
    """If the deadline passes between two attempts, the job ends, and the cause includes the earlier
    failure.
    """
    supervised.change("backend", deadline_seconds=60.0, restart_backoff_seconds=50.0)
    supervised.journal.record.mark("started_at")
    supervised.journal.record.stamps["started_at"].seconds -= 70
    supervised.verdicts = [failure()]
    cause = supervised.run().cause
    assert cause.startswith("deadline: backend.deadline_seconds = 60 ")
    assert cause.endswith("after a failure: rank 0 failed")


def test_a_paused_job_waits_and_goes_on_or_is_stopped(supervised, monkeypatch):
    """A paused job is SUSPENDED, and continuing does not count as a restart; a stop during a second pause
    ends the job.
    """
    states = []

    def stop_within(asked, seconds, meanwhile):
        states.append((JobRecord.read(supervised.job.job_json).state, asked.why, asked_of(supervised.job)))
        if len(states) == 1:
            control.ask_pause(supervised.job, False)
        else:
            Ask.put(supervised.job.control_ask, "stop")
        meanwhile()
        return asked.stop

    monkeypatch.setattr(SignalRequests, "stop_within", stop_within)
    control.ask_pause(supervised.job, True)
    assert run_attempts(supervised.it, left) == Verdict("SUCCEEDED", "done")
    record = supervised.journal.record
    assert (states, record.attempt, record.restarts) == ([("SUSPENDED", "", "pause")], 1, 0)
    assert asked_of(supervised.job) is None
    assert record.cause == "paused on request at step 4; saved; `nbtrain resume tiny` continues it"
    assert [event["message"] for event in supervised.events("state")][-1] == "resumed after a pause"
    control.ask_pause(supervised.job, True)
    verdict = run_attempts(supervised.it, left)
    assert verdict.state == "CANCELLED"
    assert lacks(verdict.cause, "stopped on request while ", "(paused on request at step 4; saved)") == []
    assert supervised.it.requests.why != PAUSE


def test_a_stop_while_a_pause_gives_its_devices_back_is_heeded(supervised, monkeypatch):
    """A stop is obeyed even while a pause waits for the lock of the queue to release its devices; TERM is
    sent only once.
    """
    it = supervised.it

    def stop_within(asked, seconds, meanwhile):
        control.ask_pause(supervised.job, False)
        return asked.stop

    monkeypatch.setattr(SignalRequests, "stop_within", stop_within)

    def give_up():
        it.requests.stop, it.requests.why = True, REQUEST

    it.place = SimpleNamespace(wait=lambda asked, config: None, give_up=give_up, queue_again=lambda: None)
    control.ask_pause(supervised.job, True)
    verdict = run_attempts(it, left)
    assert verdict.state == "CANCELLED"
    assert lacks(verdict.cause, "stopped on request while ", "(paused on request at step 4; saved)") == []


def test_a_rollback_changes_nothing_but_the_samples(supervised):
    """Even in an elastic job, a rollback does not wait and does not check disk space and devices again."""
    supervised.change("backend", elastic=True)
    newest = Rollback("job", 0, 0.0, step=7, checkpoint_step=4, first=32, last=64, cause="nan")
    verdict = Verdict("FAILED", "nan", retry=True, kind="rollback")
    recovery = recovery_from(verdict, None, 3, supervised.it.config, [newest], vain=1)
    assert astuple(recovery) == ("", astuple(newest), 0.0, False, False)
    other = recovery_from(failure(), None, 0, supervised.it.config, vain=1)
    assert (other.rollback, other.needs_room, other.counts_devices) == (None, False, True)
