"""The supervisor's view of an attempt's ranks, by its own clock: heartbeats, exit records, silent ranks."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nbtrain.base.run_directory.outcomes import COMPLETED, FAILED_OUTCOMES
from nbtrain.base.run_directory.rank_phases import LEAVING_PHASES
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat
from nbtrain.jobs.attempt.backend import Launcher
from nbtrain.jobs.attempt.hang import Standstill
from nbtrain.jobs.attempt.phases import RECORD_SECONDS, time_is_over

# Additional seconds without progress that a rank may take while it starts and imports torch, which is slow
# from a cold disk, and while it exits.
BIRTH_SECONDS = 120.0
# If at least this many seconds pass between two polls, the supervisor itself was suspended or starved. Half
# of backend.heartbeat_timeout_seconds applies if that is less; otherwise, such a pause would count as a hang.
PAUSE_SECONDS = 5.0
EARLY_PHASES = frozenset({"start", "build", "load"})
# Phases in which a rank reports no progress, because Python and torch are starting or shutting down.
QUIET_PHASES = EARLY_PHASES | {"end"}


@dataclass
class RankWatch:
    """The last known state of one rank."""

    progressed_at: float
    """Time at which the rank's heartbeat last changed in anything but its time stamp."""
    written_at: float
    """Time of the last heartbeat, which a separate thread renews even while the rank hangs."""
    beat: Heartbeat | None = None
    record: ExitRecord | None = None
    """The rank's exit record; None while the rank runs."""
    gone_at: float | None = None
    """Time at which the rank was first found gone without an exit record; None before that.

    The exit record of such a rank is still being written, or was lost with the rank's wrapper.
    """

    def hear(self, beat: Heartbeat | None, now: float) -> None:
        """Record a heartbeat that was read at the time `now`.

        The heartbeat shows progress if anything but its time stamp changed; clocks may jump, so the time
        stamp is ignored.
        """
        if beat is None or beat == self.beat:
            return
        # Bytes written to a checkpoint in the background do not show that the training continues.
        written = beat.written_bytes if self.beat is None or beat.phase == "save" else self.beat.written_bytes
        if self.beat is None or replace(beat, time=self.beat.time, written_bytes=written) != self.beat:
            self.progressed_at = now
        self.beat, self.written_at = beat, now

    @property
    def saving_at(self) -> float | None:
        """Time at which the rank last wrote to a checkpoint, or began to save or exit.

        None if the rank is not saving or exiting.
        """
        leaves = self.beat is not None and self.beat.phase in LEAVING_PHASES and not self.beat.process.gone()
        return self.progressed_at if leaves else None


def last_saving(watches: Iterable[RankWatch]) -> float | None:
    """Return the latest saving_at of several ranks; None if no rank is saving or exiting."""
    return max((at for watch in watches if (at := watch.saving_at) is not None), default=None)


class Patience:
    """Time limit for ranks that were asked to exit, extended by their heartbeats.

    It serves processes other than the ranks' supervisor, such as `nbtrain cancel`.
    """

    def __init__(self, heartbeats: Iterable[Path], seconds: float):
        """Start the time limit.

        `heartbeats` are the ranks' heartbeat files; `seconds` is the result of patience_seconds().
        """
        self._seconds, self._began = seconds, time.monotonic()
        self._watches = {path: RankWatch(self._began, self._began) for path in heartbeats}

    def over(self) -> bool:
        """Return whether the ranks' time is over, by phases.time_is_over()."""
        now = time.monotonic()
        for path, watch in self._watches.items():
            watch.hear(Heartbeat.read(path), now)
        return time_is_over(now, self._began, self._seconds, last_saving(self._watches.values()))


class Ranks:
    """All ranks of one attempt."""

    def __init__(self, launcher: Launcher, world_size: int, now: float, heartbeat_timeout_seconds: float):
        self._launcher = launcher
        self._pause_seconds = min(PAUSE_SECONDS, heartbeat_timeout_seconds / 2)
        self.watches = {rank: RankWatch(now, now) for rank in range(world_size)}
        self._looked_at: float | None = None
        self._trained = False

    def poll(self, now: float) -> float:
        """Read every heartbeat and every new exit record.

        Returns the seconds for which the supervisor itself was suspended, usually 0.
        """
        stood_still = self._excuse(now)
        for rank, watch in self.watches.items():
            watch.hear(self._launcher.heartbeat(rank), now)
            if watch.record is None and (record := self._launcher.exit_record(rank)):
                watch.record, watch.gone_at = record, None
        return stood_still

    def saving_at(self) -> float | None:
        """Return when a running rank last showed that it is saving or exiting; None if no rank is."""
        return last_saving(watch for watch in self.watches.values() if watch.record is None)

    def _excuse(self, now: float) -> float:
        """Extend the ranks' time limits by the time for which the supervisor itself was suspended."""
        pause = now - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = now
        if pause <= self._pause_seconds:
            return 0.0
        for watch in self.watches.values():
            watch.progressed_at += pause
            watch.written_at += pause
        return pause

    def note_gone(self, now: float) -> None:
        """Set gone_at for each rank that is now found gone without an exit record."""
        for watch in self.watches.values():
            if watch.gone_at is None and watch.beat and not watch.record and watch.beat.process.gone():
                watch.gone_at = now

    @property
    def records(self) -> dict[int, ExitRecord]:
        """The exit records of the ranks that have ended, as {rank: record}."""
        return {rank: watch.record for rank, watch in self.watches.items() if watch.record}

    @property
    def gone(self) -> tuple[int, ...]:
        """The ranks that are gone without an exit record."""
        return tuple(rank for rank, watch in self.watches.items() if watch.gone_at is not None)

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the ranks that have reported, as {rank: pid}."""
        return {rank: watch.beat.process.pid for rank, watch in self.watches.items() if watch.beat}

    def failed(self, now: float) -> bool:
        """Return whether a rank has failed, or is gone and its record is overdue."""
        late = any(
            watch.gone_at is not None and now - watch.gone_at > RECORD_SECONDS
            for watch in self.watches.values()
        )
        return late or any(record.outcome in FAILED_OUTCOMES for record in self.records.values())

    def lead(self) -> Heartbeat | None:
        """Return rank 0's newest heartbeat; None if it has not reported."""
        return self.watches[0].beat

    def training(self) -> bool:
        """Return whether rank 0 has finished loading."""
        beat, record = self.lead(), self.watches[0].record
        # Once true, it stays true: between two phases, a heartbeat shows the outer phase, which is `start`.
        self._trained = (
            self._trained
            or (beat is not None and beat.phase not in EARLY_PHASES)
            or (record is not None and record.outcome in COMPLETED)
        )
        return self._trained

    def reached_step(self) -> int | None:
        """Return the furthest step that any rank has reported; None if no rank has reported a step."""
        steps = [watch.beat.step for watch in self.watches.values() if watch.beat]
        steps += [record.step for record in self.records.values() if record.step is not None]
        return max(steps, default=None)

    def standstills(self, now: float) -> list[Standstill]:
        """Return the position of each rank that has not ended."""
        return [
            Standstill(rank, watch.beat, now - watch.progressed_at, now - watch.written_at)
            for rank, watch in self.watches.items()
            if watch.record is None
        ]


def overdue(one: Standstill, limit_seconds: float) -> bool:
    """Return whether a rank has made no progress for longer than its phase allows."""
    quiet = one.beat is None or one.beat.phase in QUIET_PHASES
    return one.still_seconds > limit_seconds + (BIRTH_SECONDS if quiet else 0.0)
