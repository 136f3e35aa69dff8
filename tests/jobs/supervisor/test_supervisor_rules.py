"""The supervisor's decisions between attempts, with attempts that are told and not run."""

import collections
import time

import pytest

from nbtrain.base import files
from nbtrain.base.events import read_events
from nbtrain.base.records import AttemptRecord, JobRecord, Rollback
from nbtrain.base.rundir import JobDir, RunDir, new_job_id
from nbtrain.dataset.samples.state import DataState
from nbtrain.jobs import control
from nbtrain.jobs.supervisor import supervise as supervisor_module
from nbtrain.jobs.supervisor.rank_wrapper import WITHOUT_WORD
from nbtrain.jobs.supervisor.recovery import in_vain
from nbtrain.jobs.supervisor.reserve import Reserve
from nbtrain.jobs.supervisor.supervise import Supervisor
from nbtrain.jobs.supervisor.verdict import Verdict


@pytest.fixture
def supervisor(tiny, workspace):
    """A supervisor over a job on disk; supervisor.told is the list of verdicts its attempts end in."""
    config = tiny(**{"backend.restart_backoff_seconds": 0.01, "backend.max_restarts": 3})
    job = JobDir(RunDir.named("tiny"), new_job_id())
    job.make_folders()
    JobRecord(job.job_id, "id", "tiny", "QUEUED", time.time(), world_size=1).write(job.job_json)
    supervisor = Supervisor(job)
    supervisor.known_config = config
    supervisor.reserve = Reserve(job.path, "supervisor")
    supervisor.told = []
    supervisor.attempt = lambda: supervisor.told.pop(0)
    return supervisor


def failure(signature=None, retry=True):
    return Verdict("FAILED", "rank 0 failed", retry=retry, signature=signature, step=3)


def test_it_stops_when_the_restarts_are_used_up(supervisor):
    """max_restarts 3: four attempts, and the cause says so; each restart is an event."""
    supervisor.told = [failure() for _ in range(9)]
    verdict = supervisor.attempts()
    assert (verdict.state, verdict.cause) == (
        "FAILED",
        "rank 0 failed; not tried again: backend.max_restarts = 3 is used up",
    )
    assert len(supervisor.told) == 5
    restarts = [event for event in read_events(supervisor.job) if event["kind"] == "restart"]
    assert [event["wait_seconds"] for event in restarts] == [0.01, 0.02, 0.04]
    assert JobRecord.read(supervisor.job.job_json).state == "RESTARTING"


def test_the_same_failure_twice_ends_it(supervisor):
    """The same step and message again: nothing changes by trying; another failure in between counts anew."""
    supervisor.told = [failure((3, "boom")), failure((5, "boom")), failure((5, "boom")), failure()]
    assert supervisor.attempts().cause.endswith("not tried again: the attempt before failed the same way")
    assert len(supervisor.told) == 1


def test_no_second_attempt_where_it_cannot_help(supervisor):
    """retry False ends the job at once."""
    supervisor.told = [failure(retry=False), failure()]
    assert supervisor.attempts().cause == "rank 0 failed"
    assert len(supervisor.told) == 1


def test_a_stop_while_waiting_is_obeyed(supervisor):
    """Cancelled between two attempts: CANCELLED, with the failure before it."""
    supervisor.told = [failure(), failure()]
    supervisor.stop_requested = True
    verdict = supervisor.attempts()
    assert (verdict.state, verdict.cause) == (
        "CANCELLED",
        "stopped on request while it waited to restart; before: rank 0 failed",
    )


def test_lost_work_is_counted(supervisor):
    """Steps and tokens since the newest checkpoint are in the event."""
    supervisor.reached_step = 9
    supervisor.told = [failure(retry=True), Verdict("SUCCEEDED", "done")]
    supervisor.attempts()
    event = next(event for event in read_events(supervisor.job) if "lost_tokens" in event)
    assert (event["step"], event["checkpoint_step"], event["lost_tokens"]) == (9, 0, 9 * 8 * 16)
    assert event["message"].endswith("no checkpoint yet: 9 steps (1,152 tokens) are lost")


def test_a_full_disk_does_not_end_the_watch(supervisor, monkeypatch):
    """A state that cannot be written for want of space is passed over; the ranks are still watched."""
    import errno

    from nbtrain.base import files

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    supervisor.set_state("RUNNING")
    assert supervisor.record.state == "RUNNING"


# --- going back ----------------------------------------------------------------------------------------------


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


def test_a_rollback_restarts_at_once_and_is_no_restart(supervisor):
    """No wait, no count; the samples from the checkpoint on are written down, with those passed over before counted."""
    checkpoint(supervisor.run_dir, 4, 32, ((8, 16),))
    supervisor.told = [bad_step(6, 48, 56), Verdict("SUCCEEDED", "done")]
    supervisor.reached_step = 6
    assert supervisor.attempts().cause == "done"
    assert supervisor.record.restarts == 0
    (entry,) = Rollback.read_all(supervisor.run_dir.rollbacks_json)
    # 32 samples and the 8 that were passed over before lie behind the checkpoint.
    assert (entry.step, entry.checkpoint_step, entry.first, entry.last) == (6, 4, 40, 56)
    (told,) = [event for event in read_events(supervisor.job) if event["kind"] == "rollback"]
    assert told["message"] == (
        "step 6: the loss is nan; goes back to step 4 and passes over samples 40 to 55; 2 steps (256 tokens) since the "
        "checkpoint of step 4 are lost"
    )


def test_a_rollback_without_a_checkpoint_goes_to_the_start(supervisor):
    supervisor.told = [bad_step(2, 8, 16), Verdict("SUCCEEDED", "done")]
    supervisor.attempts()
    (entry,) = Rollback.read_all(supervisor.run_dir.rollbacks_json)
    assert (entry.checkpoint_step, entry.first, entry.last) == (0, 0, 16)
    told = next(event["message"] for event in read_events(supervisor.job) if event["kind"] == "rollback")
    assert "goes back to the start and passes over samples 0 to 15; no checkpoint yet" in told


def test_rollbacks_have_a_limit_of_their_own(supervisor):
    """max_skipped_steps within the window; those of far away steps do not count."""
    stability = supervisor.config.stability.model_copy(
        update={"max_skipped_steps": 2, "loss_spike_window_steps": 10}
    )
    supervisor.known_config = supervisor.config.model_copy(update={"stability": stability})
    supervisor.told = [bad_step(step, 8 * step, 8 * step + 8) for step in (5, 30, 31, 33, 34)]
    verdict = supervisor.attempts()
    assert verdict.state == "FAILED"
    assert verdict.cause == (
        "step 33: the loss is nan; not tried again: 3 rollbacks within 10 steps are more than "
        "stability.max_skipped_steps = 2 allows; lower lr_schedule.lr or look at the data"
    )
    assert len(supervisor.told) == 1


def test_a_rollback_in_vain_is_not_made_over_and_over(supervisor):
    """Thrice at one step, or before it, from one checkpoint, other samples each time: no need of ten more starts."""
    checkpoint(supervisor.run_dir, 4, 32)
    supervisor.told = [bad_step(step, 8 * step, 8 * step + 8) for step in (6, 8, 8, 7, 8)]
    verdict = supervisor.attempts()
    assert verdict.cause == (
        "step 7: the loss is nan; not tried again: 3 attempts from step 4 came no further, with other samples each time, "
        "so it is not the data; lower lr_schedule.lr, or remove that checkpoint to go on from an older one"
    )
    assert len(supervisor.told) == 1


def test_only_rollbacks_of_one_job_to_one_checkpoint_are_in_vain():
    """A new job may have other settings, a new checkpoint is progress, and so is a later step."""

    def entries(*places):
        return [Rollback(job, 0, 0.0, step, saved, 0, 8, "nan") for job, saved, step in places]

    assert in_vain(entries(("a", 4, 6))) == 1
    assert in_vain(entries(("a", 4, 6), ("a", 4, 6), ("b", 4, 6))) == 1
    assert in_vain(entries(("a", 0, 6), ("a", 4, 6), ("a", 4, 6))) == 2
    assert in_vain(entries(("a", 4, 6), ("a", 4, 7), ("a", 4, 6))) == 2


def test_a_stop_does_not_forget_the_bad_samples(supervisor):
    """Asked to stop when the ranks left to go back: CANCELLED, and the next job passes over them."""
    supervisor.told = [bad_step(6, 48, 56, stopped=True)]
    assert supervisor.attempts().state == "CANCELLED"
    assert len(Rollback.read_all(supervisor.run_dir.rollbacks_json)) == 1


# --- a full disk ---------------------------------------------------------------------------------------------


class Disk:
    """shutil of supervisor.py: free bytes, one look after the other; the last stays."""

    def __init__(self, *free):
        self.looks = list(free)

    def disk_usage(self, path):
        free = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return type("Usage", (), {"free": free, "total": 1 << 40})


def full_disk():
    return Verdict("FAILED", "rank 0 failed: the disk is full", retry=True, kind="disk")


def test_it_waits_for_room(supervisor, monkeypatch):
    """Until a checkpoint fits, with one event; then it goes on."""
    monkeypatch.setattr(supervisor_module, "shutil", Disk(0, 1 << 20, 1 << 30))
    monkeypatch.setattr(supervisor_module, "DISK_POLL_SECONDS", 0.01)
    supervisor.told = [full_disk(), Verdict("SUCCEEDED", "done")]
    assert supervisor.attempts().cause == "done"
    (told,) = [event for event in read_events(supervisor.job) if event["kind"] == "warning"]
    assert told["message"] == "waits up to 600 s for room on the disk: 0.08 GiB are needed, 0.00 GiB are free"


def test_a_rank_without_a_word_beside_a_full_disk_could_not_write_it(supervisor, monkeypatch):
    """The cause is the disk, and it is waited for; with room the rank's silence stays what it is."""
    silent = Verdict(
        "FAILED", f"rank 0 failed: exit code 1 {WITHOUT_WORD}", retry=True, signature=(3, "x"), step=3
    )
    full = collections.namedtuple("Usage", "total used free")(80 << 20, 80 << 20, 4096)
    monkeypatch.setattr(supervisor_module.shutil, "disk_usage", lambda path: full)
    seen = supervisor.seen_with_the_disk(silent)
    assert (seen.kind, seen.signature) == ("disk", None)
    assert seen.cause == "rank 0 failed: exit code 1 without a word; the disk is full"
    assert supervisor.seen_with_the_disk(failure()) == failure()
    unrecorded = Verdict("FAILED", "rank 0's wrapper was killed", retry=True, kind="no record")
    assert (
        supervisor.seen_with_the_disk(unrecorded).cause
        == "a rank left no record of its end; the disk is full"
    )
    monkeypatch.setattr(supervisor_module.shutil, "disk_usage", lambda path: full._replace(free=1 << 30))
    assert supervisor.seen_with_the_disk(silent) == silent


def test_it_does_not_wait_for_ever(supervisor, monkeypatch):
    backend = supervisor.config.backend.model_copy(update={"disk_wait_seconds": 0.0})
    supervisor.known_config = supervisor.config.model_copy(update={"backend": backend})
    monkeypatch.setattr(supervisor_module, "shutil", Disk(0))
    supervisor.told = [full_disk()]
    assert supervisor.attempts().cause == (
        "rank 0 failed: the disk is full; not tried again: there was no room within backend.disk_wait_seconds = 0 "
        "(0.08 GiB are needed, 0.00 GiB are free)"
    )
    assert supervisor.record.restarts == 0, "it was given up before one was made"


# --- fewer or more devices -----------------------------------------------------------------------------------


@pytest.fixture
def elastic(supervisor):
    config = supervisor.config
    parallel = config.parallel.model_copy(update={"data_parallel_size": 4})
    backend = config.backend.model_copy(update={"elastic": True})
    batch = config.batch.model_copy(update={"micro_batch_size": 1})
    supervisor.known_config = config.model_copy(
        update={"parallel": parallel, "backend": backend, "batch": batch}
    )
    return supervisor


def test_a_restart_takes_as_many_devices_as_there_are(elastic):
    """4 -> 2 where 3 are left, since the batch of 8 does not divide by 3; and back to 4 when they are there again."""
    sizes = []

    def attempt():
        sizes.append((elastic.config.parallel.data_parallel_size, elastic.record.world_size))
        control.ask_devices(elastic.job, 3 if len(sizes) == 1 else 4)
        return failure() if len(sizes) < 3 else Verdict("SUCCEEDED", "done")

    elastic.attempt = attempt
    elastic.record.world_size = 4
    assert elastic.attempts().cause == "done"
    assert sizes == [(4, 4), (2, 2), (4, 4)]
    told = [event["message"] for event in read_events(elastic.job) if event["kind"] == "warning"]
    assert told == [
        "3 devices are usable: data_parallel_size 4 -> 2, 2 ranks; the global batch of 8 stays",
        "4 devices are usable: data_parallel_size 2 -> 4, 4 ranks; the global batch of 8 stays",
    ]


def test_no_device_is_no_run(elastic):
    control.ask_devices(elastic.job, 0)
    elastic.told = [failure()]
    assert elastic.attempts().cause == (
        "rank 0 failed; not tried again: 0 devices are left, and one copy of the model needs 1"
    )


def test_nobody_asked_on_a_cpu(elastic):
    """Nothing is counted there: the size stays, also once the operator's word is taken back."""
    control.ask_devices(elastic.job, None)
    elastic.told = [failure(), Verdict("SUCCEEDED", "done")]
    elastic.attempts()
    assert elastic.config.parallel.data_parallel_size == 4


# --- what is known of each attempt ---------------------------------------------------------------------------


def test_what_was_lost_is_known_once_the_next_one_goes_on(supervisor):
    """The newest checkpoint was torn inside: the next attempt goes on from an older one, and more is lost."""
    supervisor.record.attempts = [
        AttemptRecord(0, 0.0, 1, 1, reached_step=9, lost_tokens=128),
        AttemptRecord(1, 0.0, 1, 1),
    ]
    supervisor.record.resumed_from_step = 4
    supervisor.correct_lost()
    assert supervisor.record.attempts[0].lost_tokens == 5 * 8 * 16
    assert supervisor.record.attempts[1].resumed_from_step == 4
