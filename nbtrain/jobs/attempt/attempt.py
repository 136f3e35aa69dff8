"""One attempt of a job: its ranks, watched from the first process to the last.

An attempt ends when the launcher has exited and no process with the job's marker is left. The supervisor ends
it early in three cases: a rank is gone (the other ranks cannot save without it, and get only a short time to
write their last log lines); a rank makes no progress for too long (hang.py finds it); or a stop was requested
and the ranks did not exit in time. phases.py decides which action is due.
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from nbtrain.base.run_directory.checkpoint_files import measured_save_seconds, newest_saved_step
from nbtrain.base.run_directory.records import STACK_SIGNAL
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import Launcher
from nbtrain.jobs.attempt.hang import Standstill, culprit, culprits, main_stack, report
from nbtrain.jobs.attempt.phases import (
    Action,
    Observed,
    Phase,
    cap_seconds,
    decide,
    patience_seconds,
    phase_of,
)
from nbtrain.jobs.attempt.ranks import Ranks, overdue
from nbtrain.jobs.attempt.verdict import Circumstances, Verdict, judge, lost_a_peer
from nbtrain.monitor.logs.logs import read_log
from nbtrain.monitor.logs.tracebacks import traceback_in

# Seconds to wait for stacks; faulthandler writes the stacks of a hundred threads in less time.
STACK_SECONDS = 0.5
# Largest number of waits of STACK_SECONDS; ranks that have not written their stacks by then are skipped.
STACK_LOOKS = 10
LOG = "see logs/supervisor.log"
# Bytes at the end of the launcher's log that are searched for the error that ended the launcher.
SAID_BYTES = 1 << 20


class Attempt:
    """The ranks of one attempt, and what the supervisor knows about them."""

    def __init__(self, job: JobDir, config: RunConfig, number: int, launcher: Launcher, first_step: int = 0):
        """Prepare an attempt that starts from the checkpoint of step `first_step`; 0 for no checkpoint."""
        self._job = job
        self._config = config
        self._number = number
        self._launcher = launcher
        self._first_step = first_step
        self._limit_seconds = config.backend.heartbeat_timeout_seconds
        self._save_seconds = measured_save_seconds(job.run)
        self.hang: str | None = None
        """Description of the ranks that hung, if the ranks were killed because of a hang; else None."""
        self.stuck: str | None = None
        """Description of where the ranks were when the first rank gave up waiting for another rank.

        None if no rank gave up.
        """
        self.awaited: int | None = None
        """Rank that hung, or for which the other ranks waited; None if that rank is not known."""
        self.stacks: dict[int, list[str]] = {}
        """{rank: innermost frames} of the ranks that hung and could write their stacks."""
        self.killed_at: float | None = None
        """Time of the supervisor's first SIGKILL, in seconds since the epoch; None if it sent no SIGKILL."""
        self._killed_after = ""
        self._stop_asked_at: float | None = None
        self._stop_now = False
        self._signalled_at: float | None = None
        self._failed_at: float | None = None
        self._asked_about_peers = False
        self._launcher_ended = False
        self._launcher_killed_at: float | None = None
        self._launcher_signal: int | None = None
        self._trouble = ""

    def start(self) -> None:
        """Start the ranks."""
        self._log_bytes = read_log(self._job.supervisor_log, limit_bytes=1).size_bytes
        self._launcher.launch(self._config, self._number)
        limit = self._config.backend.heartbeat_timeout_seconds
        self.ranks = Ranks(self._launcher, self._config.world_size, time.monotonic(), limit)

    def poll(self) -> bool:
        """Check every rank once, and take the action that is due; return whether the attempt continues."""
        now = time.monotonic()
        observed = self._observe(now)
        phase = phase_of(observed)
        match decide(observed, now):
            case Action.SIGNAL:
                self._signalled_at = now
                self._launcher.signal(signal.SIGTERM)
            case Action.KILL:
                if phase is Phase.RUNNING:
                    live = self.ranks.standstills(now)
                    self._dump_stacks(live)
                    still = f"no progress for {self._limit_seconds:g} s: {report(live)}"
                    self.hang = self._trouble or still
                    self.awaited = None if self._trouble else culprit(live)
                elif phase is Phase.STOPPING and self._stop_asked_at and not self._stop_now:
                    self._killed_after = (
                        f"{now - self._stop_asked_at:.0f} s after the request ({self._limit_words()})"
                    )
                self._kill()
        return phase is not Phase.ENDED and not (self._launcher_ended and self.killed_at is not None)

    @property
    def stop_asked(self) -> bool:
        """Whether ask_stop() was called."""
        return self._stop_asked_at is not None

    def saves_on(self) -> str:
        """Return a message if ranks need more than their usual time to save or exit; "" if they do not."""
        now = time.monotonic()
        if self._stop_asked_at is None or self.killed_at is not None or self.ranks.saving_at() is None:
            return ""
        patience = self._patience_seconds()
        if now - self._stop_asked_at < patience:
            return ""
        written = sum(watch.beat.written_bytes for watch in self.ranks.watches.values() if watch.beat)
        return (
            f"{now - self._stop_asked_at:.0f} s after the stop request ({self._limit_words()}), ranks are "
            f"still saving or exiting and have written {amounts.size(written)}; they are killed after "
            f"{patience:.0f} s without progress, at the latest {cap_seconds(patience):.0f} s after the "
            "request"
        )

    def _patience_seconds(self) -> float:
        return patience_seconds(self._config.backend.shutdown_timeout_seconds, self._save_seconds)

    def _limit_words(self) -> str:
        limit, patience = self._config.backend.shutdown_timeout_seconds, self._patience_seconds()
        configured = f"backend.shutdown_timeout_seconds = {limit:g}"
        if patience > limit:
            return f"limit: {patience:.0f} s, twice the longest save, which is more than {configured}"
        return f"limit: {configured}"

    def ask_stop(self, now: bool = False) -> None:
        """Start the time limit within which the ranks must exit.

        A request in the job's control/ folder has already asked them to stop.

        With `now`, the ranks are killed at once.
        """
        self._stop_asked_at = self._stop_asked_at or time.monotonic()
        self._stop_now = self._stop_now or now
        if self._stop_now and self.killed_at is None:
            self._kill()

    def finish(self) -> Verdict:
        """Wait until the attempt's last process has exited, and return the verdict."""
        if self._launcher.finish():
            self.killed_at = self.killed_at or time.time()
        self.ranks.poll(time.monotonic())
        code = self._launcher.poll()
        return judge(
            self.ranks.records,
            Circumstances(
                world_size=self._config.world_size,
                config=self._config,
                stop_requested=self.stop_asked,
                killed_at=self.killed_at,
                killed_after=self._killed_after,
                hang=self.hang,
                stuck=self.stuck,
                awaited=self.awaited,
                memory=self._launcher.memory(),
                pids=self.ranks.pids,
                first_step=self._first_step,
                gone=self.ranks.gone,
                launcher_signal=self._launcher_signal,
                trained=self.ranks.training(),
                mode=self._config.mode,
                saved_step=newest_saved_step(self._job.run),
                reached_step=self.ranks.reached_step(),
                node_left=self._launcher.end_message,
                launcher_message=self._launcher.end_message or self._launchers_end(code),
            ),
        )

    def _launchers_end(self, code: int | None) -> str:
        """Return the launcher's exit code, and its error if it wrote a traceback during this attempt."""
        part = read_log(self._job.supervisor_log, limit_bytes=SAID_BYTES)
        begin = max(0, self._log_bytes - part.start_bytes)
        traceback = traceback_in(part.text.encode()[begin:].decode("utf-8", "replace"))
        error = f": {traceback.splitlines()[-1]}" if traceback else ""
        return f"exit code {code}{error}; {LOG}"

    def _observe(self, now: float) -> Observed:
        """Return the current state of the ranks, after recording when each change of state was seen."""
        code = self._launcher.poll()
        stood_still = self.ranks.poll(now)
        if self._stop_asked_at is not None:
            self._stop_asked_at += stood_still
        if code is not None:
            self._note_launcher_end(code, now)
        elif self.killed_at is None:
            self.ranks.note_gone(now)
        if not self._launcher_ended and not self.stop_asked and self.ranks.failed(now):
            self._failed_at = now if self._failed_at is None else self._failed_at
            self._ask_about_peers(now)
        watched = not self._launcher_ended and not self.stop_asked and self._failed_at is None
        self._trouble = self._launcher.trouble() if watched else ""
        if (lead := self.ranks.lead()) and lead.progress:
            self._save_seconds = max(self._save_seconds, lead.progress.save_seconds or 0.0)
        limit, still = self._limit_seconds, self.ranks.standstills(now)
        return Observed(
            patience_seconds=self._patience_seconds(),
            saving_at=self.ranks.saving_at(),
            training=self.ranks.training(),
            launcher_ended=self._launcher_ended,
            launcher_killed_at=self._launcher_killed_at,
            processes_left=self._launcher_killed_at is None or self._launcher.processes_left(),
            killed=self.killed_at is not None,
            stop_asked_at=self._stop_asked_at,
            stop_now=self._stop_now,
            signalled_at=self._signalled_at,
            failed_at=self._failed_at,
            hangs=watched and (bool(self._trouble) or any(overdue(rank, limit) for rank in still)),
        )

    def _note_launcher_end(self, code: int, now: float) -> None:
        """Record that the launcher has ended.

        If another process killed the launcher, the ranks save and exit because of that.
        """
        if self._launcher_ended:
            return
        self._launcher_ended = True
        if code < 0 and self.killed_at is None and self._signalled_at is None:
            self._launcher_signal, self._launcher_killed_at = -code, now

    def _ask_about_peers(self, now: float) -> None:
        """Find out which ranks the failed ranks waited for, if every failed rank gave up waiting.

        The ranks are examined only once per attempt.
        """
        # If a rank has no process and no exit record, the others waited for this rank, or its record is about
        # to arrive.
        if self._asked_about_peers or self.ranks.gone:
            return
        self._asked_about_peers = True
        live = self.ranks.standstills(now)
        if live and lost_a_peer(self.ranks.records):
            self.stuck, self.awaited = report(live), culprit(live)
            self._dump_stacks(live)

    def _dump_stacks(self, live: list[Standstill]) -> None:
        """Make the ranks write the stacks of all their threads to their logs.

        Ranks that are stopped by a signal, or do not handle STACK_SIGNAL yet, are skipped. The stacks of the
        ranks that hang are kept in `stacks`.
        """
        able = {
            rank.rank: rank.beat for rank in live if rank.beat and rank.beat.dumps_stack and not rank.stopped
        }
        logs = {rank: self._job.log(rank, self._number) for rank in able}
        sizes = _sizes(logs)
        if able:
            self._launcher.signal(STACK_SIGNAL, [beat.process for beat in able.values()])
            # A signal to another machine and that machine's output need time to cross a shared disk.
            for _ in range(STACK_LOOKS):
                time.sleep(STACK_SECONDS)
                if all(size > sizes[rank] for rank, size in _sizes(logs).items()):
                    break
        for rank in culprits(live):
            if rank.rank in sizes and logs[rank.rank].exists():
                with logs[rank.rank].open("rb") as log:
                    log.seek(sizes[rank.rank])
                    self.stacks[rank.rank] = main_stack(log.read().decode(errors="replace"))

    def _kill(self) -> None:
        self.killed_at = self.killed_at or time.time()
        self._launcher.kill()


def _sizes(logs: Mapping[int, Path]) -> dict[int, int]:
    return {rank: log.stat().st_size if log.exists() else 0 for rank, log in logs.items()}
