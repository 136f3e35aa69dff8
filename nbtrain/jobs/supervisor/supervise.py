"""The supervisor of one job: a detached process that starts the ranks, watches them and tells their end.

    python -m nbtrain.jobs.supervisor <run dir> <job id>

    QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED
                 ^           |
                 +-RESTARTING+     from the newest whole checkpoint, after a wait that doubles

What it does between two attempts depends on how the first one ended (verdict.py):

    rollback     at once: the samples from the checkpoint to the bad step go to rollbacks.json and are passed over
    disk         it waits until there is room, up to backend.disk_wait_seconds
    GPU, rank    with backend.elastic the devices are counted, and the next attempt has as many data-parallel ranks
                 as they hold; the global batch stays
    the rest     after a wait that doubles, at most backend.max_restarts times

It has its own session, so a kernel, a server or a shell may end around it, and it holds the run's lock while
it lives. Signals: TERM and INT ask the ranks to save and leave, QUIT kills them, USR1 asks for a checkpoint;
HUP is ignored. If it is killed itself, the kernel tells torchrun (PR_SET_PDEATHSIG), the ranks save and leave,
and readers see the job as LOST.
"""

import contextlib
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nbtrain.base import amounts, files
from nbtrain.base.checkpoint_files import newest_checkpoint_step
from nbtrain.base.events import EventWriter
from nbtrain.base.jobstate import CANCELLED, FAILED, RESTARTING, RUNNING, STARTING, SUCCEEDED
from nbtrain.base.records import (
    AttemptRecord,
    ControlRequest,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Rollback,
)
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.elastic import elastic_size, resized
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.state import DataState
from nbtrain.jobs.control import asked_devices
from nbtrain.jobs.machine import usable_cores, visible_gpus
from nbtrain.jobs.supervisor import leftovers, processes
from nbtrain.jobs.supervisor.attempt import POLL_SECONDS, Attempt
from nbtrain.jobs.supervisor.rank_wrapper import WITHOUT_WORD
from nbtrain.jobs.supervisor.recovery import (
    DISK_POLL_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    NO_ROOM_BYTES,
    SPARE_BYTES,
    VAIN_ROLLBACKS,
    in_vain,
)
from nbtrain.jobs.supervisor.reserve import FULL, Reserve
from nbtrain.jobs.supervisor.summary import write_summary
from nbtrain.jobs.supervisor.verdict import DISK_IS_FULL, Verdict

# Whoever filled the disk may take the reserve too: the last words are tried this often.
LAST_WORD_TRIES = 20


class Supervisor:
    """Owner of a job from its first process to its last word."""

    def __init__(self, job: JobDir):
        self.job = job
        self.run_dir = job.run
        record = JobRecord.read(job.job_json)
        if record is None:
            raise FileNotFoundError(f"{job.job_json} is missing; a job is made by nbtrain submit")
        self.record = record
        self.events = EventWriter(job, "supervisor")
        self.stop_requested = self.stop_now = self.save_requested = False
        self.state_since = record.created_at
        self.last_beat: Heartbeat | None = None
        self.found_step: int | None = None
        self.reached_step: int | None = None
        self.requests = 0
        self.known_config: RunConfig | None = None

    @property
    def config(self) -> RunConfig:
        assert self.known_config is not None, "supervise() reads it first"
        return self.known_config

    # --- the story --------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Own the job from here on. Whoever reads this identity may signal it, so it listens first."""
        self.listen()
        self.record.supervisor = ProcessIdentity.of(os.getpid())
        self.record.started_at = time.time()
        self.record.write(self.job.job_json)

    def supervise(self) -> int:
        """Take the job to its end. Returns the process's exit code."""
        with self.run_dir.locked():
            self.reserve = Reserve(self.job.path, "supervisor")
            try:
                self.known_config = load_resolved(self.run_dir.config_yaml)
                self.cores = usable_cores()
                self.wait_for_predecessors()
                verdict = self.attempts()
            except Exception as error:
                # The last line of defence: whatever broke, no rank stays and the job has a cause.
                traceback.print_exc()
                verdict = Verdict(
                    FAILED, f"the supervisor failed: {type(error).__name__}: {error}{self.end_all()}"
                )
            self.end(verdict)
        return 0 if verdict.state in (SUCCEEDED, CANCELLED) else 1

    def attempts(self) -> Verdict:
        """Attempt after attempt, until one ends the job."""
        before: Verdict | None = None
        while True:
            verdict = self.seen_with_the_disk(self.attempt())
            if verdict.kind == "rollback":
                self.note_rollback(verdict)
            if not verdict.retry:
                self.close_attempt(verdict, None)
                return verdict
            lost, tokens = self.tell_lost(verdict)
            self.close_attempt(verdict, tokens)
            ended = self.before_the_next(verdict, before, lost)
            if ended is not None:
                return ended
            before = verdict
            self.record.attempt += 1
            # Counted where one is made: the wait for room on the disk may end the job. Going back is none.
            self.record.restarts += verdict.kind != "rollback"

    def seen_with_the_disk(self, verdict: Verdict) -> Verdict:
        """A rank that ended without a word or a record beside a full disk could not write one: that is the cause."""
        silent = not verdict.kind and WITHOUT_WORD in verdict.cause
        if not (verdict.retry and (silent or verdict.kind == "no record")):
            return verdict
        if shutil.disk_usage(self.run_dir.path).free >= NO_ROOM_BYTES:
            return verdict
        cause = verdict.cause if silent else "a rank left no record of its end"
        return replace(verdict, cause=f"{cause}; {DISK_IS_FULL}", kind="disk", signature=None)

    def before_the_next(self, verdict: Verdict, before: Verdict | None, lost: str) -> Verdict | None:
        """What must be before another attempt; the job's end where there is to be none."""
        if verdict.kind == "rollback":
            return self.go_back(verdict, lost)
        backend = self.config.backend
        if before and verdict.signature and verdict.signature == before.signature:
            return self.given_up(verdict, "the attempt before failed the same way")
        if self.record.restarts >= backend.max_restarts:
            return self.given_up(verdict, f"backend.max_restarts = {backend.max_restarts} is used up")
        wait = min(backend.restart_backoff_seconds * 2**self.record.restarts, LONGEST_BACKOFF_SECONDS)
        self.tell_restart(verdict, lost, wait)
        if verdict.kind == "disk" and (ended := self.wait_for_room(verdict)):
            return ended
        if self.stopped_while_waiting(wait):
            return self.cancelled_while_waiting(verdict)
        return self.fit_devices(verdict) if backend.elastic else None

    def tell_restart(self, verdict: Verdict, lost: str, wait: float) -> None:
        self.event(
            "restart",
            f"attempt {self.record.attempt} failed: {verdict.cause}; {lost}; the next one starts in {wait:g} s",
            attempt=self.record.attempt,
            cause=verdict.cause,
            reason=verdict.kind,
            wait_seconds=wait,
        )
        self.set_state(RESTARTING, verdict.cause)

    def cancelled_while_waiting(self, verdict: Verdict) -> Verdict:
        return Verdict(CANCELLED, f"stopped on request while it waited to restart; before: {verdict.cause}")

    # --- between two attempts ---------------------------------------------------------------------------------

    def note_rollback(self, verdict: Verdict) -> None:
        """Write down which samples every later attempt, of this job or another, passes over."""
        assert verdict.bad_samples is not None and verdict.step is not None
        step = newest_checkpoint_step(self.run_dir) or 0
        manifest = files.read_json(self.run_dir.checkpoint_manifest(step)) if step else None
        first = 0
        if manifest and "data_state" in manifest:
            state = DataState.from_dict(manifest["data_state"])
            first = state.position(state.consumed_samples)
        entry = Rollback(
            job_id=self.job.job_id,
            attempt=self.record.attempt,
            time=time.time(),
            step=verdict.step,
            checkpoint_step=step,
            first=first,
            last=verdict.bad_samples[1],
            cause=verdict.cause,
        )
        self.reserve.write(lambda: entry.append(self.run_dir.rollbacks_json))

    def go_back(self, verdict: Verdict, lost: str) -> Verdict | None:
        """Restart at once; no more often within a window than stability.max_skipped_steps allows, nor where it is in vain."""
        stability = self.config.stability
        entries = Rollback.read_all(self.run_dir.rollbacks_json)
        newest, window = entries[-1], stability.loss_spike_window_steps
        near = [entry for entry in entries if abs(entry.step - newest.step) < window]
        if len(near) > stability.max_skipped_steps:
            return self.given_up(
                verdict,
                f"{len(near)} rollbacks within {amounts.counted(window, 'step')} are more than stability.max_skipped_steps = "
                f"{stability.max_skipped_steps} allows; lower lr_schedule.lr or look at the data",
            )
        back = f"step {newest.checkpoint_step}" if newest.checkpoint_step else "the start"
        if in_vain(entries) >= VAIN_ROLLBACKS:
            older = ", or remove that checkpoint to go on from an older one" if newest.checkpoint_step else ""
            return self.given_up(
                verdict,
                f"{VAIN_ROLLBACKS} attempts from {back} came no further, with other samples each time, so it is not the "
                f"data; lower lr_schedule.lr{older}",
            )
        message = f"{verdict.cause}; goes back to {back} and passes over samples {newest.first:,} to {newest.last - 1:,}; {lost}"
        self.event("rollback", message, step=newest.step, positions=[newest.first, newest.last])
        self.set_state(RESTARTING, verdict.cause)
        return self.cancelled_while_waiting(verdict) if self.stop_requested else None

    def wait_for_room(self, verdict: Verdict) -> Verdict | None:
        """Wait until the disk holds one more checkpoint; the job's end where it does not in time."""
        needed = checkpoint_room_bytes(self.config) + SPARE_BYTES
        seconds = self.config.backend.disk_wait_seconds
        deadline = time.monotonic() + seconds
        told = False
        while (free := shutil.disk_usage(self.run_dir.path).free) < needed:
            words = f"{needed / 2**30:.2f} GiB are needed, {free / 2**30:.2f} GiB are free"
            if time.monotonic() >= deadline:
                waited = f"there was no room within backend.disk_wait_seconds = {seconds:g}"
                return self.given_up(verdict, f"{waited} ({words})")
            if not told:
                told = True
                self.event(
                    "warning", f"waits up to {seconds:g} s for room on the disk: {words}", needed_bytes=needed
                )
            if self.stopped_while_waiting(DISK_POLL_SECONDS):
                return self.cancelled_while_waiting(verdict)
        return None

    def fit_devices(self, verdict: Verdict) -> Verdict | None:
        """backend.elastic: as many data-parallel ranks as the devices that are left, or there again, can hold."""
        devices = self.usable_devices()
        size = elastic_size(self.config, devices)
        known = self.config.parallel.data_parallel_size
        if size is None:
            copy = self.config.world_size // known
            return self.given_up(
                verdict, f"{devices} devices are left, and one copy of the model needs {copy}"
            )
        if size != known:
            self.known_config = resized(self.config, size)
            self.record.world_size = self.config.world_size
            self.event(
                "warning",
                f"{devices} devices are usable: data_parallel_size {known} -> {size}, {self.config.world_size} ranks; the "
                f"global batch of {self.config.batch.global_batch_size} stays",
                devices=devices,
                data_parallel_size=size,
            )
        return None

    def usable_devices(self) -> int:
        """What an operator asked for (nbtrain.jobs.control.ask_devices); else the GPUs; on CPU as many as there were."""
        if (asked := asked_devices(self.job)) is not None:
            return asked
        return len(visible_gpus()) if self.config.resources.device == "gpu" else self.config.world_size

    def attempt(self) -> Verdict:
        """One attempt: torchrun, from start to the last process gone."""
        if self.stop_requested:
            return Verdict(CANCELLED, "stopped on request before its ranks were started")
        began = time.time()
        self.found_step = newest_checkpoint_step(self.run_dir)
        self.job.control_request.unlink(missing_ok=True)
        with self.job.supervisor_log.open("ab") as log:
            attempt = Attempt(self.job, self.config, self.record, self.record.attempt, self.cores, log)
            attempt.first_step = self.found_step or 0
            parallel = self.config.parallel
            self.record.attempts.append(
                AttemptRecord(
                    self.record.attempt,
                    began,
                    self.record.world_size,
                    parallel.data_parallel_size,
                    first_step=self.found_step,
                    first_tokens=self.tokens_between(0, self.found_step or 0),
                )
            )
            self.set_state(STARTING)
            attempt.start()
            while attempt.poll():
                self.obey(attempt)
                self.tell_running(attempt)
                time.sleep(POLL_SECONDS)
            # An attempt may be shorter than a look at it.
            self.tell_running(attempt)
            verdict = attempt.finish()
        self.last_beat = attempt.lead() or self.last_beat
        self.reached_step = attempt.reached_step()
        for rank, stack in sorted(attempt.stacks.items()):
            self.event(
                "hang",
                f"rank {rank} stood at {stack[0] if stack else 'no line of Python'}; all stacks are in its log",
                rank=rank,
                stack=stack,
            )
        since = began if attempt.killed else None
        for path in leftovers.sweep(self.run_dir, since, keep=self.reserve.path):
            self.event("warning", f"removed {path}, left half-written by a killed process")
        return verdict

    def end_all(self) -> str:
        """Kill whatever is left of the job; words where that did not do."""
        try:
            processes.end_marked([self.job.job_id], 0.0)
        except TimeoutError as error:
            return f"; {error}"
        return ""

    # --- what is asked of it -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Signals become flags; the loop acts on them."""

        def stop(number: int, frame: object) -> None:
            self.stop_requested = True
            self.stop_now = self.stop_now or number == signal.SIGQUIT

        def save(number: int, frame: object) -> None:
            self.save_requested = True

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, stop)
        signal.signal(signal.SIGUSR1, save)

    def obey(self, attempt: Attempt) -> None:
        """Pass on to the ranks what was asked since the last look."""
        if self.stop_requested and attempt.stop_asked_at is None:
            self.request("stop", "cancelled")
            self.event("state", "asked to stop" + (" at once, without saving" if self.stop_now else ""))
            attempt.ask_stop(self.stop_now)
        elif self.stop_now and not attempt.stop_now:
            attempt.ask_stop(now=True)
        if self.save_requested:
            self.save_requested = False
            if not self.stop_requested:
                self.request("save", "asked for")
                self.event("checkpoint", "asked for a checkpoint at the next step")

    def request(self, action: str, reason: str) -> None:
        before = ControlRequest.read(self.job.control_request)
        number = max(before.request_id if before else 0, self.requests) + 1
        self.requests = number
        self.try_write(
            lambda: ControlRequest(number, action, reason, time.time()).write(self.job.control_request)
        )

    def stopped_while_waiting(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.stop_requested:
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        return self.stop_requested

    # --- what it tells --------------------------------------------------------------------------------------

    def set_state(self, state: str, cause: str | None = None) -> None:
        """Write the state to job.json and tell it as an event with the seconds spent in the one before."""
        previous, self.record.state, self.record.cause = self.record.state, state, cause
        self.tell_state(previous)
        self.try_write(lambda: self.record.write(self.job.job_json))

    def tell_state(self, previous: str) -> None:
        now, state, cause = time.time(), self.record.state, self.record.cause
        self.event(
            "state",
            f"{previous} -> {state}" + (f": {cause}" if cause else ""),
            state=state,
            previous_state=previous,
            seconds=round(now - self.state_since, 3),
            attempt=self.record.attempt,
            **({"cause": cause} if cause else {}),
        )
        self.state_since = now

    def event(self, kind: str, message: str, **data: object) -> None:
        """One event, and the same line in supervisor.log."""
        self.try_write(lambda: self.events.write(kind, message, **data))
        # The log may lie on the same full disk; losing a line of it must not end a training.
        with contextlib.suppress(OSError):
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {kind}: {message}", flush=True)

    def try_write(self, write: Callable[[], None]) -> bool:
        """Write a record; False where the disk is full. A full disk must not end the watch over the ranks."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def tell_running(self, attempt: Attempt) -> None:
        """STARTING ends when rank 0 is past loading.

        It says from which checkpoint it went on: the newest, or an older one where it found that torn.
        """
        if self.record.state != STARTING or not attempt.training():
            return
        beat = attempt.lead()
        told = beat.progress.checkpoint_step if beat and beat.progress else None
        steps = [step for step in (self.found_step, told) if step is not None]
        self.record.resumed_from_step = min(steps, default=None) if self.found_step else None
        self.correct_lost()
        self.set_state(RUNNING)

    def tell_lost(self, verdict: Verdict) -> tuple[str, int]:
        """What a failed attempt costs, in words and tokens: the steps since the newest checkpoint."""
        saved = newest_checkpoint_step(self.run_dir) or 0
        reached = max(filter(None, (verdict.step, self.reached_step, 0)), default=0)
        tokens = self.tokens_between(saved, reached)
        lost = amounts.counted(max(0, reached - saved), "step")
        text = f"{lost} ({tokens:,} tokens) since the checkpoint of step {saved} {'is' if reached - saved == 1 else 'are'} lost"
        if not saved:
            text = f"no checkpoint yet: {lost} ({tokens:,} tokens) {'is' if reached == 1 else 'are'} lost"
        self.event(
            "error", f"{verdict.cause}; {text}", lost_tokens=tokens, checkpoint_step=saved, step=reached
        )
        return text, tokens

    def tokens_between(self, saved: int, reached: int) -> int:
        schedule = self.config.batch_schedule
        return schedule.tokens_after(max(saved, reached)) - schedule.tokens_after(saved)

    def close_attempt(self, verdict: Verdict, lost_tokens: int | None) -> None:
        """What is known of the attempt at its end, for job.json; the next state change writes it."""
        if not self.record.attempts:
            return
        newest = self.record.attempts[-1]
        newest.ended_at, newest.reached_step = time.time(), self.reached_step
        newest.lost_tokens = lost_tokens
        if verdict.state != SUCCEEDED:
            newest.cause = verdict.cause

    def correct_lost(self) -> None:
        """An attempt goes on: from which step is known now, so what the one before has lost is too."""
        now = self.record.attempts[-1]
        now.running_at, now.resumed_from_step = time.time(), self.record.resumed_from_step
        if len(self.record.attempts) > 1 and (before := self.record.attempts[-2]).reached_step is not None:
            before.lost_tokens = self.tokens_between(self.record.resumed_from_step or 0, before.reached_step)

    def given_up(self, verdict: Verdict, why: str) -> Verdict:
        return Verdict(FAILED, f"{verdict.cause}; not tried again: {why}", step=verdict.step)

    def wait_for_predecessors(self) -> None:
        """Ranks of an earlier job whose supervisor died may still be saving; two jobs must not share model/."""
        others = [job_id for job_id in self.run_dir.job_ids() if job_id != self.job.job_id]
        if left := processes.marked_pids(others):
            seconds = self.config.backend.shutdown_timeout_seconds
            self.event(
                "warning", f"{len(left)} processes of a lost job are still there; waits up to {seconds:g} s"
            )
            killed = processes.end_marked(others, seconds)
            self.event("warning", f"they are gone, {len(killed)} of them killed")
        for path in leftovers.sweep(self.run_dir, None, keep=self.reserve.path):
            self.event("warning", f"removed {path}, left half-written by an earlier job")

    def end(self, verdict: Verdict) -> None:
        """The last words: event, summary.json, and then the state, so that whoever waits for it finds all."""
        cause = verdict.cause
        if verdict.state == SUCCEEDED and self.known_config and self.config.mode != "eval":
            steps, scheduled = self.config.train_steps, self.config.scheduled_steps
            by = self.config.shortened_by
            cause += f": {amounts.counted(steps, 'step')}" + (
                f" of {scheduled:,} ({by} ends it here)" if by else ""
            )
        if verdict.state == FAILED:
            cause += self.disk_note()
        previous, self.record.state, self.record.cause = self.record.state, verdict.state, cause
        self.record.ended_at = time.time()
        self.reserve.release()
        self.tell_state(previous)
        for _ in range(LAST_WORD_TRIES):
            summed = not self.known_config or self.try_write(lambda: self.summary(verdict.state, cause))
            if summed and self.try_write(lambda: self.record.write(self.job.job_json)):
                break
            time.sleep(0.5)

    def summary(self, state: str, cause: str) -> None:
        write_summary(
            self.run_dir,
            self.config,
            self.record,
            state,
            cause,
            self.last_beat,
            self.record.ended_at or time.time(),
        )

    def disk_note(self) -> str:
        """A hint where the disk of the run is as good as full."""
        usage = shutil.disk_usage(self.run_dir.path)
        if usage.free > max(64 * 2**20, usage.total // 1000):
            return ""
        return f" (the run's disk has {usage.free / 2**20:.0f} MiB of {usage.total / 2**30:.2f} GiB free)"


def main(run_dir: str, job_id: str) -> int:
    """Detach and supervise."""
    # The starter waits for this process only; its child belongs to nobody, so no zombie is left in a kernel.
    if os.fork():
        return 0
    processes.adopt_orphans()
    job = JobDir(RunDir(Path(run_dir)), job_id)
    supervisor = Supervisor(job)
    supervisor.take_over()
    return supervisor.supervise()
