"""The supervisor of one job: a detached process that starts the ranks, watches them and records their end.

    python -m nbtrain.jobs.supervisor <run dir> <job id>

    QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED
      ^          ^           |
      |          +-RESTARTING+     from the newest complete checkpoint
      +----------+-SUSPENDED-+     the same, on resume (pause.py); QUEUED if other jobs have its devices
      +----------------------+     a preemption: the ranks have saved and exited (wait_for_return)

The main path is supervise -> run_attempts -> run_attempt (attempt/attempt.py) -> its verdict
(attempt/verdict.py) -> recover, by the policy in recovery.py. run_attempts decides what counts against
backend.max_restarts: a preemption, a pause or a rollback does not. journal.py records everything.

The supervisor has its own session, so it survives the end of the notebook kernel, server or shell that
submitted the job. It holds the run's lock while it lives. Its signals are described in signals.py. If the
supervisor itself is killed, the kernel signals the launcher (PR_SET_PDEATHSIG), the ranks save and exit, and
readers see the job as LOST.
"""

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.files import is_read_only
from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.checkpoint_files import newest_saved_step
from nbtrain.base.run_directory.jobstate import (
    CANCELLED,
    FAILED,
    FINAL,
    QUEUED,
    RESTARTING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.run_directory.node_records import STOPS, Ask
from nbtrain.base.run_directory.observed_state import at_rest, preempted_words
from nbtrain.base.run_directory.records import Rollback
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.load import load_resolved
from nbtrain.config.load.elastic import fitted
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.attempt import Attempt
from nbtrain.jobs.attempt.backend import Backend, Launcher, backend_of
from nbtrain.jobs.attempt.phases import stop_patience_seconds
from nbtrain.jobs.attempt.reserve import FULL, READ_ONLY_ERRORS, Reserve
from nbtrain.jobs.attempt.verdict import DISK_IS_FULL, STOPPED, Verdict
from nbtrain.jobs.control.control import asked_devices, asked_pause
from nbtrain.jobs.machine import processes
from nbtrain.jobs.node.sampler import Sampler
from nbtrain.jobs.notify import notify
from nbtrain.jobs.supervisor.journal import Displaced, Journal
from nbtrain.jobs.supervisor.pause import hold, is_paused, paused_before, paused_words
from nbtrain.jobs.supervisor.predecessors import sweep, wait_for_displaced, wait_for_predecessors
from nbtrain.jobs.supervisor.progress_report import ProgressReport
from nbtrain.jobs.supervisor.queue_place import QueuePlace, place_of
from nbtrain.jobs.supervisor.recovery import (
    cancelled_while_waiting,
    given_up,
    overdue,
    preempted,
    recovery_from,
    rollback_of,
    saved_nothing,
    saved_words,
    with_the_disk,
)
from nbtrain.jobs.supervisor.signals import (
    ALLOCATION,
    DEADLINE,
    ENGINE,
    PAUSE,
    POLL_SECONDS,
    PREEMPTION,
    SignalRequests,
)

# Free bytes required for events, logs and heartbeats, in addition to a checkpoint.
SPARE_BYTES = 64 << 20
DISK_POLL_SECONDS = 1.0
RETURN_POLL_SECONDS = 1.0
RESUME = "`nbtrain resume` continues it"


@dataclass
class Supervision:
    """State shared by the functions in this file."""

    job: JobDir
    config: RunConfig
    """Configuration of the next attempt, which backend.elastic may have resized."""
    launcher: Launcher
    requests: SignalRequests
    journal: Journal
    usage: UsageWriter | None = None
    """Writer of this machine's resource use; None if no ranks run on this machine."""
    paused_seconds: float = 0.0
    """Seconds since the job's start during which it was paused or waited for its devices."""
    place: QueuePlace | None = None
    """The job's place in this machine's queue; None if the job is not queued here."""
    report: ProgressReport | None = None
    """Reporter of progress to the scheduler; None if progress is not reported."""
    attempt_told: int | None = None
    """Number of the newest attempt whose slow saving was reported; None before the first report."""
    pause_ends_allocation: bool = False
    """Whether a pause ends the allocation, so that this supervisor exits too."""
    notice: str = ""
    """Newest notice that the job's devices are being taken away; "" without a notice."""
    notice_trouble: str = ""
    """Newest reported reason why backend.preemption_notice could not be read; "" if it could."""


def main(run_dir: str, job_id: str, foreground: bool = False) -> int:
    """Detach from the caller, or stay in the foreground inside an allocation, and supervise the job.

    Returns the exit code of the process.
    """
    # The caller waits only for this process. Its child becomes an orphan, so no zombie is left in the
    # notebook kernel.
    if not foreground and os.fork():
        return 0
    processes.adopt_orphans()
    job = JobDir(RunDir(Path(run_dir)), job_id)
    requests = SignalRequests().listen(in_allocation=foreground)
    if foreground:
        wait_for_lock(job)
    journal = Journal(job)
    requests.read_ask(job, at_start=True)
    state = journal.record.state
    # If the job is paused without a supervisor, this process is the next task of its Slurm job array, and the
    # pause has not ended.
    if at_rest(journal.record) or (state in FINAL and not asked_again(journal)):
        print(f"job {job_id} is {state}; there is nothing to do", flush=True)
        return 0 if state in (SUCCEEDED, SUSPENDED) else 1
    if journal.superseded():
        return 0
    journal.take_over()
    return supervise(journal, requests)


def asked_again(journal: Journal) -> bool:
    """Return whether a scheduler has started the job again after ending it, such as after a preemption."""
    ask = Ask.read(journal.job.control_ask)
    return journal.record.state == CANCELLED and (ask is None or ask.action not in STOPS)


def wait_for_lock(job: JobDir) -> None:
    """Wait until the run's lock is free.

    A lost allocation may still hold the lock; submit() holds it only briefly. job.json is read only after
    this, so that it includes everything the lost allocation wrote. The wait is skipped if the run has a newer
    job.
    """
    run = job.run
    with run.locked(blocking=False) as taken:
        if taken or Journal(job).newer_job():
            return
    print(f"another process holds the lock of {run.path}; waiting for it to exit", flush=True)
    with run.locked():
        return


def supervise(journal: Journal, requests: SignalRequests) -> int:
    """Run the job to its end and return the process's exit code."""
    job = journal.job
    with job.run.locked():
        if journal.superseded():
            return 0
        journal.reserve = Reserve(job.path, "supervisor")
        launcher: Launcher | None = None
        place: QueuePlace | None = None
        try:
            try:
                journal.config = config = load_resolved(job.run.config_yaml)
                wait_for_displaced(journal)
                wait_for_predecessors(journal, stop_patience_seconds(job.run, config))
                backend = backend_of(journal.record.backend)
                launcher = backend.launcher(job, journal.record.command)
                # Node agents measure ranks on other machines.
                usage = UsageWriter(job.resources, 0) if journal.record.backend == "local" else None
                place = place_of(journal, config)
                report = ProgressReport(journal)
                it = Supervision(job, config, launcher, requests, journal, usage, place=place, report=report)
                note_lost_allocation(journal, backend)
                it.paused_seconds = paused_before(job, journal.record)
                it.pause_ends_allocation = backend.capabilities.pause_ends_allocation
                verdict = run_attempts(it)
                report.close(journal.last_beat)
                if verdict.state == SUSPENDED:
                    journal.hand_over(verdict.cause, SUSPENDED)
                    launcher.close()
                    return 0
                if requests.why in (ALLOCATION, ENGINE) and verdict.state == CANCELLED:
                    journal.check_owner()
                    cause = f"{requests.why}: {saved_words(job)}"
                    if (preemption := journal.record.waiting_preemption) is not None:
                        words = backend.after_preemption(job, config)
                        cause = f"{preemption.notice}: {saved_words(job)}"
                        cause = preempted_words(preemption) if words else cause
                    elif requests.why == ALLOCATION:
                        words = backend.go_on(job, config)
                    else:
                        words = backend.starts_again(job)
                    if words:
                        journal.hand_over(f"{cause}; {words}", paused=asked_pause(job))
                        launcher.close()
                        return 0
                    verdict = replace(verdict, cause=f"{cause}, {RESUME}")
            except Exception as error:
                # After an unexpected error, no rank may remain, and the job must end with a cause.
                traceback.print_exc()
                said = f"the supervisor failed: {type(error).__name__}: {error}"
                try:
                    processes.end_marked([job.job_id], 0.0)
                except TimeoutError as left:
                    said += f"; {left}"
                verdict = Verdict(FAILED, said)
            journal.end(verdict)
        except Displaced as displaced:
            print(
                f"another supervisor has taken over: {displaced}; killing the ranks and exiting", flush=True
            )
            if launcher is not None:
                launcher.abandon()
            return 0
        finally:
            if place is not None:
                place.give_up()
        if launcher is not None:
            launcher.close()
    # Notifications are sent without the run's lock, so that a resume need not wait for a slow receiver.
    send_notifications(journal)
    return 0 if verdict.state in (SUCCEEDED, CANCELLED) else 1


def send_notifications(journal: Journal) -> None:
    """Send the job's notifications at its end; a failure is recorded as an event and changes nothing else."""
    if journal.config is None:
        return
    try:
        summary = files.read_json(journal.job.run.summary_json)
        for went_well, said in notify(journal.config.notify, summary) if summary else ():
            journal.event("notification" if went_well else "warning", said)
    except Exception as error:
        journal.event("warning", f"no notification was sent: {type(error).__name__}: {error}")


def run_attempts(it: Supervision, run: Callable[[Supervision], Verdict] | None = None) -> Verdict:
    """Run attempts until the job ends, and return the final verdict.

    `run` is the function that runs one attempt, run_attempt() by default.
    """
    before: Verdict | None = None
    while True:
        if (ended := wait_for_devices(it)) is not None:
            if not is_paused(it.requests, ended):
                return ended
            if (ended := pause(it, ended)) is not None:
                return ended
            continue
        verdict = (run or run_attempt)(it)
        free_bytes = shutil.disk_usage(it.job.run.path).free
        verdict = with_the_disk(verdict, free_bytes, is_read_only(it.job.path))
        if verdict.kind == end_kinds.ROLLBACK:
            it.journal.note_rollback(rollback_of(verdict, it.job, it.journal.record.attempt))
        if notice := preemption_of(it, verdict):
            verdict = preempted(verdict, notice)
        lost = it.journal.attempt_ended(verdict)
        if verdict.kind == end_kinds.PREEMPTED:
            ended = wait_for_return(it, verdict)
            if ended is None:
                before = None
                it.journal.next_attempt(restart=False)
                continue
        else:
            ended = recover(it, verdict, before, lost) if verdict.retry else verdict
        if ended is not None and is_paused(it.requests, ended):
            ended = pause(it, ended)
            if ended is None:
                before = None
                it.journal.next_attempt(restart=False)
                continue
        if ended is not None:
            return overdue(ended, it.config) if it.requests.why == DEADLINE else ended
        before = verdict
        # A rollback does not count as a restart.
        it.journal.next_attempt(restart=verdict.kind != end_kinds.ROLLBACK)


def wait_for_devices(it: Supervision) -> Verdict | None:
    """Wait until the job has its devices, and return None.

    If a stop or a pause is requested first, return the job's verdict instead.
    """
    if it.place is None:
        return None
    since, record = time.monotonic(), it.journal.record
    ended = it.place.wait(it.requests, it.config)
    if ended is None and not record.attempts:
        # The job's time starts here, so its displayed time and its limits exclude the wait and any pause
        # during it.
        record.mark("started_at")
        it.paused_seconds = 0.0
    else:
        it.paused_seconds += time.monotonic() - since
    return ended


def note_lost_allocation(journal: Journal, backend: Backend) -> None:
    """Record a preemption that ended the previous allocation before its supervisor could record it."""
    lost = journal.lost_attempt
    if lost is None:
        return
    try:
        notice = backend.preempted_since(journal.job, lost.started_at)
    except JobError as error:
        journal.event("warning", f"cannot tell whether the lost allocation was preempted: {error}")
        return
    if notice:
        journal.lost_to_a_preemption(notice)


def preemption_of(it: Supervision, verdict: Verdict) -> str:
    """Return the preemption notice if the attempt ended because of a preemption; "" if it did not.

    A stop requested by a user, a deadline and the end of the training take precedence.
    """
    requests = it.requests
    scheduler = requests.why in (ALLOCATION, ENGINE)
    left = verdict.state == CANCELLED and requests.why in (PREEMPTION, ALLOCATION, ENGINE)
    if not (left or (verdict.retry and requests.why in ("", PREEMPTION, ALLOCATION, ENGINE))):
        return ""
    return it.launcher.preemption(signalled=scheduler) or (it.notice if requests.why == PREEMPTION else "")


def wait_for_return(it: Supervision, verdict: Verdict) -> Verdict | None:
    """Stay QUEUED without ranks until the devices are back, and return None.

    If the scheduler ends the allocation first, or the job is stopped or paused, return the job's verdict
    instead.
    """
    requests, journal = it.requests, it.journal
    preemption = journal.record.waiting_preemption
    assert preemption is not None, "attempt_ended() has recorded it"
    journal.forget_request()
    since = time.monotonic()
    if requests.why != ENGINE:
        journal.set_state(QUEUED, preempted_words(preemption))
        it.launcher.give_back()
    while True:
        if requests.why in (PREEMPTION, ALLOCATION):
            # The scheduler ends the allocation with TERM. A warning about the time limit refers only to the
            # end that the preemption has set.
            requests.stop, requests.why = False, ""
        requests.save = False  # the ranks have saved
        if requests.stop:
            break
        # An elastic run continues on the machines that are left.
        if not (it.launcher.preemption() or (not it.config.backend.elastic and it.launcher.missing())):
            break
        requests.stop_within(RETURN_POLL_SECONDS, lambda: look_for_requests(it))
    it.paused_seconds += time.monotonic() - since
    if requests.stop:
        return Verdict(CANCELLED, f"{STOPPED} while the job waited in the queue; {verdict.cause}")
    return fit_devices(it, verdict) if it.config.backend.elastic else None


def pause(it: Supervision, verdict: Verdict) -> Verdict | None:
    """Stay SUSPENDED, without devices, until the job is resumed, and return None.

    If the job is stopped first, return its verdict instead. If a pause ends the allocation, return a
    SUSPENDED verdict at once, with which this supervisor exits.
    """
    if it.pause_ends_allocation and asked_pause(it.job):
        return Verdict(SUSPENDED, paused_words(it.job, verdict))
    since = time.monotonic()
    if it.place is not None:
        it.place.give_up()
    ended = hold(it.job, it.journal, it.requests, verdict)
    if ended is None and it.config.backend.elastic:
        # Other jobs may have taken devices, or released some.
        ended = fit_devices(it, verdict)
    if it.place is not None:
        it.place.queue_again()
    it.paused_seconds += time.monotonic() - since
    return ended


def run_attempt(it: Supervision) -> Verdict:
    """Run one attempt, from its start until its last process has exited, and return its verdict."""
    poll_requests(it)
    if it.requests.stop:
        return Verdict(CANCELLED, f"{STOPPED} before its ranks were started")
    it.journal.forget_request()
    try:
        record = it.journal.attempt_starts(it.config, it.paused_seconds)
    except OSError as error:
        if error.errno in FULL:
            return Verdict(FAILED, f"{DISK_IS_FULL}: {error}", retry=True, kind=end_kinds.DISK)
        if error.errno in READ_ONLY_ERRORS:
            return Verdict(FAILED, f"job.json cannot be written: {error}")
        raise
    attempt = Attempt(it.job, it.config, record.attempt, it.launcher, record.first_step or 0)
    attempt.start()
    with measured(it):
        while attempt.poll():
            poll_requests(it)
            heed_preemption(it)
            obey(it, attempt)
            tell_training(it, attempt)
            tell_saving(it, attempt)
            if it.report:
                it.report.poll(attempt.ranks.lead())
            time.sleep(POLL_SECONDS)
    # An attempt may be shorter than the interval between two polls.
    tell_training(it, attempt)
    verdict = attempt.finish()
    it.journal.attempt_heard(attempt.ranks.lead(), attempt.ranks.reached_step(), attempt.stacks)
    # Ranks that ended by themselves may also have left a checkpoint half-written. If it is the run's first,
    # the next attempt would find no complete checkpoint and fail.
    sweep(it.journal, f"attempt {record.attempt}", record.started_at)
    return verdict


def look_for_requests(it: Supervision) -> None:
    """Renew the sign of life, and check for a requested stop or pause."""
    it.journal.sign_of_life()
    it.requests.read_ask(it.job)
    if asked_pause(it.job):
        it.requests.leave(PAUSE)


def poll_requests(it: Supervision) -> None:
    """Read new requests, and request a stop if the job's deadline has passed."""
    look_for_requests(it)
    deadline = it.config.backend.deadline_seconds
    if deadline is not None and it.journal.record.seconds_since("started_at") - it.paused_seconds >= deadline:
        it.requests.leave(DEADLINE)


def heed_preemption(it: Supervision) -> None:
    """Make the ranks save and exit if the job's devices are being taken away."""
    if it.requests.stop:
        return
    if notice := it.launcher.preemption():
        it.notice = notice
        it.journal.event("preemption", notice)
        it.requests.leave(PREEMPTION)
    trouble = it.launcher.preemption_trouble()
    # A service that fails now and then must not flood the events.
    if trouble and trouble != it.notice_trouble:
        it.notice_trouble = trouble
        it.journal.event("warning", trouble)


@contextlib.contextmanager
def measured(it: Supervision) -> Iterator[None]:
    """Measure this machine's resources while the block runs, if the ranks run on this machine."""
    if it.usage is None:
        yield
        return
    with Sampler(it.usage, it.job.job_id, range(it.config.world_size), it.config) as sampler:
        yield
    if sampler.failure:
        it.journal.event("warning", f"resources are no longer measured: {sampler.failure}")


def recover(it: Supervision, verdict: Verdict, before: Verdict | None, lost: str) -> Verdict | None:
    """Prepare another attempt and return None, or return the job's verdict if no attempt follows."""
    journal, restarts = it.journal, it.journal.record.restarts
    rollbacks = Rollback.read_all(it.job.run.rollbacks_json)
    vain = saved_nothing(journal.record.attempts, newest_saved_step(it.job.run))
    recovery = recovery_from(verdict, before, restarts, it.config, rollbacks, vain=vain)
    if recovery.give_up:
        return given_up(verdict, recovery.give_up)
    if recovery.rollback:
        journal.tell_rollback(recovery.rollback, lost)
    else:
        journal.tell_restart(verdict, lost, recovery.wait_seconds)
    journal.set_state(RESTARTING, verdict.cause)
    if recovery.needs_room and (ended := wait_for_room(it, verdict)):
        return ended
    if it.requests.stop_within(recovery.wait_seconds, lambda: poll_requests(it)):
        return cancelled_while_waiting(verdict)
    return fit_devices(it, verdict) if recovery.counts_devices else None


def obey(it: Supervision, attempt: Attempt) -> None:
    """Forward to the ranks the requests that have arrived since the last call."""
    requests, journal = it.requests, it.journal
    if requests.stop and not attempt.stop_asked:
        if not requests.stop_now:
            journal.request("stop", requests.why)
        how = "at once, without saving" if requests.stop_now else f"because of {requests.why}"
        journal.event("state", f"stopping {how}")
    if requests.stop:
        attempt.ask_stop(requests.stop_now)
    if requests.save:
        requests.save = False
        if not requests.stop:
            journal.request("save", "requested")
            journal.event("checkpoint", "requested a checkpoint at the next step")


def tell_training(it: Supervision, attempt: Attempt) -> None:
    """Change the state from STARTING to RUNNING once rank 0 has finished loading."""
    if it.journal.record.state == STARTING and attempt.ranks.training():
        it.journal.attempt_trains(attempt.ranks.lead())


def tell_saving(it: Supervision, attempt: Attempt) -> None:
    """Report, once per attempt, that the ranks get more time because they are still saving or exiting."""
    if it.attempt_told != it.journal.record.attempt and (words := attempt.saves_on()):
        it.attempt_told = it.journal.record.attempt
        it.journal.event("checkpoint", words)


def wait_for_room(it: Supervision, verdict: Verdict) -> Verdict | None:
    """Wait until the disk has room for one more checkpoint, and return None.

    If that takes longer than backend.disk_wait_seconds, or a stop is requested, return the job's verdict
    instead.
    """
    needed = checkpoint_room_bytes(it.config) + SPARE_BYTES
    seconds = it.config.backend.disk_wait_seconds
    deadline = time.monotonic() + seconds
    announced = False
    while (free := shutil.disk_usage(it.job.run.path).free) < needed:
        words = f"{amounts.size(needed)} is needed, but only {amounts.size(free)} is free"
        if time.monotonic() >= deadline:
            waited = f"the disk still had no room after backend.disk_wait_seconds = {seconds:g}"
            return given_up(verdict, f"{waited} ({words})")
        if not announced:
            announced = True
            said = f"waiting up to {seconds:g} s for free disk space: {words}"
            it.journal.event("warning", said, needed_bytes=needed, wait_seconds=seconds)
        if it.requests.stop_within(DISK_POLL_SECONDS, lambda: poll_requests(it)):
            return cancelled_while_waiting(verdict)
    return None


def fit_devices(it: Supervision, verdict: Verdict) -> Verdict | None:
    """Resize the run to the usable devices by changing its number of data-parallel ranks (backend.elastic).

    Returns None, or the job's verdict if the devices cannot hold a single copy of the model.
    """
    own = it.journal.config or it.config
    requests, nodes = asked_devices(it.job), own.resources.nodes
    if requests is None:
        counted = it.launcher.devices(own)
    else:
        full, rest = divmod(requests, own.ranks_per_node)
        counted = [requests] if nodes == 1 else [own.ranks_per_node] * full + [rest]
    if counted is None:
        return None
    devices, known = sum(counted), it.config.parallel.data_parallel_size
    fits = fitted(it.config, counted)
    if fits is None:
        copy = it.config.world_size // known
        left = f"{amounts.counted(devices, 'device')} {'is' if devices == 1 else 'are'} left"
        return given_up(verdict, f"{left}, but one copy of the model needs {amounts.counted(copy, 'device')}")
    size = fits.parallel.data_parallel_size
    if size != known:
        machines = f" on {fits.resources.nodes} of {nodes} machines" if nodes > 1 else ""
        usable = f"{amounts.counted(devices, 'device')} {'is' if devices == 1 else 'are'} usable"
        said = (
            f"{usable}: data_parallel_size {known} -> {size}, {amounts.counted(fits.world_size, 'rank')}"
            f"{machines}; the global batch size remains {fits.batch.global_batch_size}"
        )
        it.journal.event("warning", said, devices=devices, data_parallel_size=size)
    it.config = fits
    return None
