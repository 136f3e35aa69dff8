"""A supervisor's record of its job: job.json, events, rollbacks.json and the final state.

A full or read-only disk must not stop the supervision of the ranks, so a record that cannot be written is
skipped. Writing the final state is retried and has disk space reserved for it; if that fails too, the state
is written elsewhere (base/run_directory/final_record.py).
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.files import is_read_only
from nbtrain.base.run_directory import end_kinds, final_record
from nbtrain.base.run_directory.checkpoint_files import newest_saved_step, on_nodes_words, only_on_nodes
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, QUEUED, RUNNING, STARTING, SUCCEEDED
from nbtrain.base.run_directory.observed_state import SIGN_OF_LIFE_SECONDS
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    ControlRequest,
    Heartbeat,
    JobRecord,
    Preemption,
    ProcessIdentity,
    ResumeCertificate,
    Rollback,
)
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.config.load.attempt import attempt_record
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.hang import stuck_words
from nbtrain.jobs.attempt.reserve import FULL, READ_ONLY_ERRORS, Reserve
from nbtrain.jobs.attempt.verdict import Verdict
from nbtrain.jobs.supervisor.recovery import starting_point
from nbtrain.jobs.supervisor.summary import write_summary
from nbtrain.monitor.run.certificate import write_certificate
from nbtrain.planner.memory import saving_here

# Number of attempts to write the final state: a program that filled the disk may also use up the reserve.
LAST_WORD_TRIES = 20
LAST_WORD_PAUSE_SECONDS = 0.5


class Displaced(BaseException):
    """Raised when another supervisor owns the job, so that this one must not write anything more."""


class Journal:
    """Writer of job.json and of the supervisor's events, while this supervisor owns the job."""

    def __init__(self, job: JobDir):
        self.job = job
        record = JobRecord.read(job.job_json)
        if record is None:
            raise FileNotFoundError(f"{job.job_json} is missing; jobs are created with `nbtrain submit`")
        self.record = record
        self.config: RunConfig | None = None
        """The configuration with which the ranks train; None until it has been read."""
        self.reserve: Reserve | None = None
        self.last_beat: Heartbeat | None = None
        self.reached_step: int | None = None
        self._events = EventWriter(job, "supervisor")
        self._state_since = time.monotonic() - record.seconds_since("created_at")
        self._requests = 0
        self._signed_at = 0.0
        self._own: ProcessIdentity | None = None
        self.lost_attempt: AttemptRecord | None = None
        """The attempt during which the previous allocation was lost; None if no allocation was lost."""
        self.displaced: ProcessIdentity | None = None
        """The job's previous supervisor, if this one replaced it during an attempt; otherwise None."""

    def take_over(self) -> None:
        """Take ownership of the job by writing this process's identity to job.json.

        The caller installs the signal handlers first, because readers of the identity may send signals. If
        the job's previous allocation was lost during an attempt, this method completes that attempt's record,
        with the attempt's last sign of life as the time of its end.
        """
        before, self._own = self.record.supervisor, ProcessIdentity.of(os.getpid())
        self.record.supervisor = self._own
        # A scheduler may restart a job that it ended earlier and that was CANCELLED then.
        self.record.ended_at = None
        self.record.stamps.pop("ended_at", None)
        if self.record.started_at is None:
            self.record.mark("started_at")
        elif self.record.attempts:
            last = self.record.attempts[-1]
            if last.ended_at is None:
                last.ended_at, last.cause = self._last_sign_of_life(last), "the job's allocation was lost"
                last.reason = end_kinds.ALLOCATION
                self.lost_attempt = last
                self.displaced = before
            if last.attempt == self.record.attempt:
                self.record.attempt += 1
            said = f"a new allocation takes over the job; attempt {self.record.attempt} follows"
            self.event("restart", said, attempt=self.record.attempt, reason=end_kinds.ALLOCATION)
        self.record.write(self.job.job_json)

    def check_owner(self) -> None:
        """Raise Displaced if another supervisor owns the job or the run.

        The run's lock prevents two supervisors from running at once, except on some network disks. Besides,
        an allocation that its scheduler gave up and restarted elsewhere may still be alive.
        """
        if self._own is None:
            return
        with contextlib.suppress(OSError):
            found = JobRecord.read(self.job.job_json)
            if found is not None and found.supervisor != self._own:
                other = found.supervisor
                owner = f"process {other.pid} on {other.host}" if other else "no process"
                own = f"process {self._own.pid} on {self._own.host}"
                raise Displaced(f"job.json names {owner} as the job's owner, but this is {own}")
            if newer := self.newer_job():
                raise Displaced(f"the run has continued as job {newer}")

    def newer_job(self) -> str | None:
        """Return the id of the run's newest job if it was submitted after this job; None if it was not."""
        newest = self.job.run.newest_job()
        newer = newest and newest.job_id > self.job.job_id and newest.job_json.exists()
        return newest.job_id if newest and newer else None

    def superseded(self) -> bool:
        """Record this job as CANCELLED if the run has a newer job; return whether there is a newer job."""
        newer = self.newer_job()
        if newer is not None:
            previous, self.record.state = self.record.state, CANCELLED
            self.record.cause = f"another job of this run was submitted: {newer}"
            self.record.mark("ended_at")
            self._tell_state(previous)
            self.record.write(self.job.job_json)
        return newer is not None

    def _write_record(self) -> None:
        self.check_owner()
        self.record.write(self.job.job_json)

    def hand_over(self, cause: str, state: str = QUEUED, paused: bool = False) -> None:
        """Give up ownership of the job, and record `state` and `cause`.

        The state is QUEUED if another allocation continues the job, and SUSPENDED if the job is paused. With
        `paused`, the state is QUEUED although the job is paused, because its scheduler still queues it.
        """
        self.check_owner()
        self.forget_request()
        self.record.supervisor = None
        self.record.attempt += 1
        self.set_state(state, cause, **({"paused": True} if paused else {}))

    def sign_of_life(self) -> None:
        """Renew job.json's time stamp, the only sign by which other hosts see that this process is alive."""
        if time.monotonic() - self._signed_at >= SIGN_OF_LIFE_SECONDS:
            self._signed_at = time.monotonic()
            self.check_owner()
            with contextlib.suppress(OSError):
                os.utime(self.job.job_json)

    def set_state(self, state: str, cause: str | None = None, **data: object) -> None:
        """Write the state to job.json and to an event.

        The event also has the seconds spent in the previous state, and `data`.
        """
        self.check_owner()
        previous, self.record.state, self.record.cause = self.record.state, state, cause
        self._tell_state(previous, **data)
        self._try_write(self._write_record)

    def set_cause(self, cause: str) -> None:
        """Write a new cause of the current state, without an event."""
        if cause != self.record.cause:
            self.record.cause = cause
            self._try_write(self._write_record)

    def _tell_state(self, previous: str, **data: object) -> None:
        now, state, cause = time.monotonic(), self.record.state, self.record.cause
        data |= {"seconds": round(now - self._state_since, 3), "attempt": self.record.attempt}
        data |= {"cause": cause} if cause else {}
        said = f"{previous} -> {state}" + (f": {cause}" if cause else "")
        self.event("state", said, state=state, previous_state=previous, **data)
        self._state_since = now

    def event(self, kind: str, message: str, **data: object) -> None:
        """Write one event, and the same text as a line of supervisor.log."""
        self._try_write(lambda: self._events.write(kind, message, **data))
        # The log may be on the same full disk; a lost log line must not end the training.
        with contextlib.suppress(OSError):
            print(f"{amounts.moment(time.time())} {kind}: {message}", flush=True)

    def request(self, action: str, reason: str) -> None:
        """Write control/request.json, which asks the ranks for an action at their next step boundary."""
        before = ControlRequest.read(self.job.control_request)
        # Once the ranks have exited, a supervisor deletes its request. Its number is still in ack.json, and
        # rank 0 ignores requests with that number or a lower one.
        done = (files.read_json(self.job.control_ack) or {}).get("request_id", 0)
        self._requests = number = max(before.request_id if before else 0, done, self._requests) + 1
        requests = ControlRequest(number, action, reason, time.time())
        self._try_write(lambda: requests.write(self.job.control_request))

    def forget_request(self) -> None:
        """Delete the stop request once the ranks have exited.

        Otherwise, the job page would keep showing "Stopping...".
        """
        self._try_write(lambda: self.job.control_request.unlink(missing_ok=True))

    def tell_rollback(self, rollback: Rollback, lost: str) -> None:
        """Write the event of a rollback."""
        said = (
            f"{rollback.cause}; the run returns to {starting_point(rollback)} and skips samples "
            f"{rollback.first:,} to {rollback.last - 1:,}; {lost}"
        )
        self.event("rollback", said, step=rollback.step, positions=[rollback.first, rollback.last])

    def tell_restart(self, verdict: Verdict, lost: str, wait_seconds: float) -> None:
        """Write the event of a restart."""
        attempt, cause = self.record.attempt, verdict.cause
        when = f"in {wait_seconds:g} s" if wait_seconds else "at once"
        said = f"attempt {attempt} failed: {cause}; {lost}; the next attempt starts {when}"
        data = {"attempt": attempt, "cause": cause, "reason": verdict.kind, "wait_seconds": wait_seconds}
        self.event("restart", said, **data)

    def note_rollback(self, rollback: Rollback) -> None:
        """Record a rollback, so that every later attempt, in this job or another, skips its samples."""
        assert self.reserve is not None
        self.reserve.write(lambda: rollback.append(self.job.run.rollbacks_json))

    def _try_write(self, write: Callable[[], None]) -> bool:
        """Write a record; return False if the disk is full or read-only, otherwise True."""
        try:
            write()
        except OSError as error:
            if error.errno not in (*FULL, *READ_ONLY_ERRORS):
                raise
            return False
        return True

    def attempt_starts(self, config: RunConfig, paused_seconds: float = 0.0) -> AttemptRecord:
        """Set the state STARTING and return the new attempt's record, which ranks read from job.json.

        `paused_seconds` is how long the job has been paused or has waited for its devices. Raises OSError if
        job.json cannot be written.
        """
        self.record.world_size = config.world_size
        found = newest_saved_step(self.job.run)
        tokens, saving = self._tokens_between(0, found or 0), saving_here(config)
        attempt = attempt_record(
            config,
            self.record.attempt,
            found,
            tokens,
            saving.in_background,
            saving.words,
            paused_seconds,
        )
        self.record.attempts.append(attempt)
        if (preemption := self.record.waiting_preemption) is not None:
            preemption.mark("resumed_at")
            waited = amounts.elapsed(preemption.waited_seconds)
            sentence = f"the job has its devices again, {waited} after its preemption"
            self.event("preemption", sentence, waited_seconds=round(preemption.waited_seconds, 3))
        self.set_state(STARTING)
        assert self.reserve is not None
        self.reserve.write(self._write_record)
        return attempt

    def attempt_trains(self, beat: Heartbeat | None) -> None:
        """Set the state RUNNING, and record the step that the ranks loaded.

        This step is lower than the newest checkpoint's step if the newest checkpoint was incomplete.
        """
        found = self.record.first_step
        loaded = beat.progress.checkpoint_step if beat and beat.progress else None
        steps = [step for step in (found, loaded) if step is not None]
        self.record.resumed_from_step = min(steps, default=None) if found else None
        now = self.record.attempts[-1]
        made = ResumeCertificate.read(self.job.resume_json)
        if made is not None and made.source and made.attempt == now.attempt:
            # The nodes' own disks may hold more or fewer checkpoints than this machine can see.
            self.record.resumed_from_step = made.step
        now.running_at, now.resumed_from_step = time.time(), self.record.resumed_from_step
        # Only now is it known how many tokens the previous attempt lost.
        if len(self.record.attempts) > 1 and (before := self.record.attempts[-2]).reached_step is not None:
            before.lost_tokens = self._tokens_between(now.resumed_from_step or 0, before.reached_step)
        self.set_state(RUNNING)

    def attempt_heard(
        self, beat: Heartbeat | None, reached_step: int | None, stacks: dict[int, list[str]]
    ) -> None:
        """Record the last step that the ranks reached, and report where hung ranks were."""
        self.last_beat = beat or self.last_beat
        self.reached_step = reached_step
        for rank, stack in sorted(stacks.items()):
            self.event("hang", stuck_words(rank, stack), rank=rank, stack=stack)

    def attempt_ended(self, verdict: Verdict) -> str:
        """Complete the attempt's record, which is written together with the next state.

        Returns text about the work that is lost after a preemption or after a failure that allows a retry; ""
        after any other end.
        """
        lost, tokens = "", None
        if verdict.kind == end_kinds.PREEMPTED:
            reached = max(filter(None, (verdict.step, self.reached_step, 0)), default=0)
            lost, tokens = self.preempted(self.record.attempt, verdict.cause, reached)
        elif verdict.retry:
            lost, tokens = self._tell_lost(verdict)
        # A stop before the ranks started is not an attempt; the newest record is then an earlier attempt's.
        if (newest := self.record.attempt_record(self.record.attempt)) is not None:
            newest.ended_at, newest.reached_step = time.time(), self.reached_step
            newest.lost_tokens = tokens
            if verdict.state != SUCCEEDED:
                newest.cause, newest.reason = verdict.cause, verdict.kind
                newest.failed_rank = verdict.rank
        return lost

    def next_attempt(self, restart: bool) -> None:
        """Increase the attempt number. With `restart`, the attempt counts against backend.max_restarts."""
        self.record.attempt += 1
        self.record.restarts += restart

    def preempted(self, attempt: int, notice: str, reached: int, at: float | None = None) -> tuple[str, int]:
        """Record a preemption of an attempt, now or `at` an earlier time.

        `reached` is the step that the attempt had reached. Returns text about the lost work, and the number
        of lost tokens.
        """
        text, tokens, saved = self._lost_since_saved(reached)
        lost_steps = max(0, reached - saved)
        preemption = Preemption(attempt, notice, at or 0.0, lost_steps, tokens)
        if at is None:
            preemption.mark("preempted_at")
        self.record.preemptions.append(preemption)
        self.event(
            "preemption",
            f"{notice}; {text}",
            lost_steps=lost_steps,
            lost_tokens=tokens,
            checkpoint_step=saved,
            step=reached,
        )
        return text, tokens

    def lost_to_a_preemption(self, notice: str) -> None:
        """Record that a preemption ended the previous allocation, which could not record its own end."""
        lost = self.lost_attempt
        assert lost is not None
        beat = self._beat_of(lost)
        lost.reached_step = beat.step if beat is not None else lost.first_step or 0
        lost.cause, lost.reason = notice, end_kinds.PREEMPTED
        _, lost.lost_tokens = self.preempted(lost.attempt, notice, lost.reached_step, lost.ended_at)

    def _beat_of(self, attempt: AttemptRecord) -> Heartbeat | None:
        """Return rank 0's last heartbeat in an attempt; None if there is no readable heartbeat."""
        with contextlib.suppress(RecordError):
            beat = Heartbeat.read(self.job.heartbeat(0))
            return beat if beat is not None and beat.attempt == attempt.attempt else None
        return None

    def _last_sign_of_life(self, attempt: AttemptRecord) -> float:
        beat = self._beat_of(attempt)
        return attempt.started_at if beat is None else beat.time

    def _tell_lost(self, verdict: Verdict) -> tuple[str, int]:
        reached = max(filter(None, (verdict.step, self.reached_step, 0)), default=0)
        text, tokens, saved = self._lost_since_saved(reached)
        self.event(
            "error", f"{verdict.cause}; {text}", lost_tokens=tokens, checkpoint_step=saved, step=reached
        )
        return text, tokens

    def _lost_since_saved(self, reached: int) -> tuple[str, int, int]:
        """Return (text about the lost work, lost tokens, step of the newest checkpoint).

        The work since the newest checkpoint is lost. The step is 0 if there is no checkpoint.
        """
        saved = newest_saved_step(self.job.run) or 0
        on_nodes = " on the nodes' own disks" if only_on_nodes(self.job.run) else ""
        tokens = self._tokens_between(saved, reached)
        lost = amounts.counted(max(0, reached - saved), "step")
        verb = "is" if reached - saved == 1 else "are"
        text = f"{lost} ({tokens:,} tokens) since the checkpoint of step {saved:,}{on_nodes} {verb} lost"
        if not saved:
            text = f"no checkpoint yet: {lost} ({tokens:,} tokens) {'is' if reached == 1 else 'are'} lost"
        return text, tokens, saved

    def _tokens_between(self, saved: int, reached: int) -> int:
        assert self.config is not None
        schedule = self.config.batch_schedule
        return schedule.tokens_after(max(saved, reached)) - schedule.tokens_after(saved)

    def end(self, verdict: Verdict) -> None:
        """Record the job's end: write the event, then summary.json, then the final state.

        In this order, a reader who finds the final state also finds everything else.
        """
        self.check_owner()
        cause, config = verdict.cause, self.config
        if verdict.given_up and (newest := self.record.attempt_record(self.record.attempt)) is not None:
            newest.given_up = verdict.given_up
        if verdict.state == SUCCEEDED and config and config.mode != "eval":
            cause += f": {amounts.counted(config.train_steps, 'step')}"
            if by := config.shortened_by:
                cause += f" of {config.scheduled_steps:,} ({by} ends the run here)"
        if verdict.state == FAILED:
            cause += disk_note(self.job.run.path)
        if words := on_nodes_words(self.job.run):
            cause += f"; {words}"
        previous, self.record.state, self.record.cause = self.record.state, verdict.state, cause
        self.record.mark("ended_at")
        if self.reserve is not None:
            self.reserve.release()
        self._tell_state(previous)
        for _ in range(LAST_WORD_TRIES):
            if self._try_write(self._summarize) and self._try_write(self._write_record):
                return
            if is_read_only(self.job.path):
                break
            time.sleep(LAST_WORD_PAUSE_SECONDS)
        path = final_record.keep(self.record)
        with contextlib.suppress(OSError):
            print(
                f"{self.job.job_json} could not be written, so the job's final state, {verdict.state}, is "
                f"recorded in {path}: {cause}",
                flush=True,
            )

    def _summarize(self) -> None:
        if self.config is None:
            return
        try:
            write_summary(self.job.run, self.config, self.record, self.last_beat)
        except RecordError as error:
            # A damaged record, perhaps an earlier job's, must not change how this job ends.
            self.event("warning", f"summary.json could not be written: {error}")
        try:
            write_certificate(self.job.run)
        except (ValueError, OSError) as error:
            # A record is damaged, or the disk is full. On a full disk, only the reserved space is free, and
            # certificate.json may be larger than that.
            self.event("warning", f"certificate.json could not be written: {error}")


def disk_note(folder: Path) -> str:
    """Return a note that the disk with a folder is nearly full; "" if it is not."""
    usage = shutil.disk_usage(folder)
    if usage.free > max(64 * 2**20, usage.total // 1000):
        return ""
    return f" (the run's disk has {usage.free / 2**20:.0f} MiB of {usage.total / 2**30:.2f} GiB free)"
