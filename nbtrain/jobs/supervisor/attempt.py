"""One attempt of a job: torchrun and its ranks, watched from the first process to the last.

    torchrun (own session, no restarts of its own, a new port)
      rank_wrapper 0 .. W-1 -> exit/<rank>.<attempt>.json
        rank 0 .. W-1       -> heartbeat/<rank>.json

An attempt ends when torchrun has ended and no process with the job's marker is left. It ends early when a
rank is gone (its peers get a short grace: without it they can save nothing), when a rank makes no progress
for too long (hang.py says which), or when a stop was asked for and the ranks did not leave in time. Ranks are killed before their
wrappers, so that the wrappers still write down how they ended.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from nbtrain.base.records import STACK_SIGNAL, ExitRecord, Heartbeat, JobRecord
from nbtrain.base.rundir import JobDir
from nbtrain.config.elastic import DATA_PARALLEL_SIZE
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.environment import rank_variables
from nbtrain.jobs.supervisor import processes
from nbtrain.jobs.supervisor.hang import Standstill, culprits, main_stack, report
from nbtrain.jobs.supervisor.host_memory import HostMemory
from nbtrain.jobs.supervisor.rank_wrapper import EXIT_FD
from nbtrain.jobs.supervisor.verdict import Circumstances, Verdict, judge, lost_a_peer

POLL_SECONDS = 0.2
# Peers of a dead rank wait in a collective that cannot end; this is for their last words.
PEER_GRACE_SECONDS = 10.0
# Before its first step a rank has nothing to save.
EARLY_STOP_SECONDS = 5.0
# Between the signal to the ranks and the kill, once shutdown_timeout_seconds are over.
TERM_GRACE_SECONDS = 3.0
WRAPPER_GRACE_SECONDS = 3.0
# A wrapper writes the record of its rank's end in much less; one that does not is gone itself.
RECORD_SECONDS = 2.0
# Until it has loaded, a rank waits for torchrun and imports torch, which a cold disk makes long; at its end it unloads.
BIRTH_SECONDS = 120.0
# A look that comes so much too late: the supervisor itself stood still (a busy or suspended machine).
PAUSE_SECONDS = 5.0
# faulthandler writes the stacks of a hundred threads in less.
STACK_SECONDS = 0.5
EARLY_PHASES = frozenset({"start", "build", "load"})
# Python and torch take their time to come and to go, and tell nothing of it.
QUIET_PHASES = EARLY_PHASES | {"end"}


@dataclass
class RankWatch:
    """What one rank was last heard to do, by the supervisor's own clock."""

    progressed_at: float
    """When anything but the time in its heartbeat changed."""
    written_at: float
    """When its heartbeat was renewed: by a thread, so also while the rank hangs."""
    beat: Heartbeat | None = None

    def hear(self, beat: Heartbeat | None, now: float) -> None:
        # Contents are compared, never clocks: the time in a heartbeat may jump.
        if beat is None or beat == self.beat:
            return
        if self.beat is None or replace(beat, time=self.beat.time) != self.beat:
            self.progressed_at = now
        self.beat, self.written_at = beat, now


@dataclass
class Attempt:
    """The processes of one attempt and what is known of them."""

    job: JobDir
    config: RunConfig
    record: JobRecord
    number: int
    cores: int
    log: IO[bytes]
    watches: dict[int, RankWatch] = field(default_factory=dict)
    records: dict[int, ExitRecord] = field(default_factory=dict)
    first_step: int = 0
    """The step of the checkpoint that it begins with."""
    hang: str | None = None
    stuck: str | None = None
    """Where the ranks stood when the first of them gave up waiting."""
    stacks: dict[int, list[str]] = field(default_factory=dict)
    """Innermost frames of the ranks that hung, as far as they could tell."""
    gone_since: dict[int, float] = field(default_factory=dict)
    """Ranks that are gone without a record: it is still being written, or the wrapper was taken away too."""
    killed: bool = False
    killed_at: float | None = None
    launcher_signal: int | None = None
    """The signal that killed torchrun, where that was not the supervisor's."""
    launcher_died_at: float | None = None
    trained: bool = False
    stop_now: bool = False
    stop_asked_at: float | None = None
    failed_at: float | None = None
    asked_whom: bool = False
    """Whether it was asked whom the ranks that gave up had waited for."""
    looked_at: float | None = None
    """When poll() was here last."""
    signalled_at: float | None = None

    def start(self) -> None:
        """Start torchrun with one wrapper for each rank."""
        backend = self.config.backend
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "1", "--nproc-per-node", str(self.record.world_size), "--max-restarts", "0"),
            # torchrun counts whole seconds; a little more than ours, so that the supervisor decides.
            *("--shutdown-timeout", str(int(backend.shutdown_timeout_seconds) + 10)),
            *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            *("--no-python", sys.executable, "-m", "nbtrain.jobs.supervisor.rank_wrapper"),
            *(sys.executable, *self.record.command, str(self.job.run.path)),
        ]
        environment = {
            **os.environ,
            **rank_variables(self.config, self.job, self.number, self.cores),
            DATA_PARALLEL_SIZE: str(self.config.parallel.data_parallel_size),
        }
        self.memory_before = HostMemory.now()
        self.started_at = now = time.monotonic()
        self.watches = {rank: RankWatch(now, now) for rank in range(self.record.world_size)}
        self.torchrun = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=environment,
            start_new_session=True,
            preexec_fn=processes.child_setup(signal.SIGTERM),
        )
        processes.keep_for_popen(self.torchrun.pid)

    # --- watching ---------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Look once at every process and record; act where something is overdue. False once it has ended."""
        now = time.monotonic()
        self._excuse(now)
        ended = self.torchrun.poll() is not None
        processes.reap_orphans()
        for rank, watch in self.watches.items():
            beat = Heartbeat.read(self.job.heartbeat(rank))
            watch.hear(beat if beat and beat.attempt == self.number else None, now)
            if rank not in self.records:
                found = ExitRecord.read(self.job.exit_record(rank, self.number))
                if found:
                    self.records[rank] = found
        if ended:
            return self._may_save(now)
        self._note_gone(now)
        if self.stop_asked_at is not None:
            self._press_stop(now)
        elif self._wrapper_gone(now) or any(
            record.outcome in ("failed", "killed") for record in self.records.values()
        ):
            self._note_failure(now)
            assert self.failed_at is not None
            if now - self.failed_at > min(PEER_GRACE_SECONDS, self.config.backend.shutdown_timeout_seconds):
                self.kill()
        elif hang := self._hanging(now):
            self.hang = hang
            self.kill()
        return True

    def _excuse(self, now: float) -> None:
        """Who was away himself cannot say that the others were silent meanwhile: that time does not count."""
        pause = now - self.looked_at if self.looked_at is not None else 0.0
        self.looked_at = now
        if pause > PAUSE_SECONDS:
            for watch in self.watches.values():
                watch.progressed_at += pause
                watch.written_at += pause

    def lead(self) -> Heartbeat | None:
        """Rank 0's last heartbeat of this attempt."""
        return self.watches[0].beat if self.watches else None

    def training(self) -> bool:
        """Whether rank 0 has come past loading."""
        beat, record = self.lead(), self.records.get(0)
        # Kept: between two phases a heartbeat shows the outer one, which is `start`.
        self.trained = (
            self.trained
            or (beat is not None and beat.phase not in EARLY_PHASES)
            or (record is not None and record.outcome in ("finished", "stopped"))
        )
        return self.trained

    def reached_step(self) -> int | None:
        """The furthest step that any rank told of."""
        steps = [watch.beat.step for watch in self.watches.values() if watch.beat]
        steps += [record.step for record in self.records.values() if record.step is not None]
        return max(steps, default=None)

    def _note_gone(self, now: float) -> None:
        """Keep since when a rank has been gone without a record, until that comes."""
        for rank, watch in self.watches.items():
            if rank in self.records or not watch.beat:
                self.gone_since.pop(rank, None)
            elif rank not in self.gone_since and not self.killed and not watch.beat.process.alive():
                self.gone_since[rank] = now

    def _wrapper_gone(self, now: float) -> bool:
        """Whether the record of a rank that is gone will not come any more."""
        return any(now - since > RECORD_SECONDS for since in self.gone_since.values())

    def _may_save(self, now: float) -> bool:
        """Behind torchrun's end: whether ranks still have time to save, since its death by another's hand told them to."""
        code = self.torchrun.returncode
        if self.launcher_died_at is None:
            self.launcher_died_at = now
            if code < 0 and not self.killed and not self.signalled_at:
                self.launcher_signal = -code
        if self.launcher_signal is None or self.killed:
            return False
        patience = self.config.backend.shutdown_timeout_seconds
        if not self.training():
            patience = min(patience, EARLY_STOP_SECONDS)
        if not processes.marked_pids([self.job.job_id]):
            return False
        if now - self.launcher_died_at > patience:
            self.kill()
        return not self.killed

    def _note_failure(self, now: float) -> None:
        """The clock of the peers' grace begins; where all that failed had waited for others, so does the question whom for."""
        self.failed_at = now if self.failed_at is None else self.failed_at
        # One that is gone is whom they waited for, or it had waited too and its record is about to come.
        if self.asked_whom or self.gone_since:
            return
        self.asked_whom = True
        live = self._standstills(now)
        if live and lost_a_peer(self.records):
            self.stuck = report(live)
            self._dump_stacks(live)

    def _hanging(self, now: float) -> str | None:
        limit = self.config.backend.heartbeat_timeout_seconds
        live = self._standstills(now)
        overdue = [
            one
            for one in live
            if one.still_seconds
            > limit + (BIRTH_SECONDS if not one.beat or one.beat.phase in QUIET_PHASES else 0.0)
        ]
        if not overdue:
            return None
        # One that stands still for so long makes all others wait: what is asked is who it was.
        self._dump_stacks(live)
        return f"no progress for {limit:g} s: {report(live)}"

    def _standstills(self, now: float) -> list[Standstill]:
        return [
            Standstill(rank, watch.beat, now - watch.progressed_at, now - watch.written_at)
            for rank, watch in self.watches.items()
            if rank not in self.records
        ]

    def _dump_stacks(self, live: list[Standstill]) -> None:
        """Have every rank that can write the stacks of its threads to its log; keep the culprits'."""
        able = [one for one in live if one.beat and one.beat.dumps_stack and not one.stopped]
        sizes = {one.rank: _size(self.job.log(one.rank, self.number)) for one in able}
        processes.send([one.beat.process.pid for one in able if one.beat], STACK_SIGNAL)
        if able:
            time.sleep(STACK_SECONDS)
        for one in culprits(live):
            if one.rank in sizes:
                with self.job.log(one.rank, self.number).open("rb") as log:
                    log.seek(sizes[one.rank])
                    self.stacks[one.rank] = main_stack(log.read().decode(errors="replace"))

    # --- ending -----------------------------------------------------------------------------------------

    def ask_stop(self, now: bool = False) -> None:
        """The ranks have been asked through control/; from here on the clock runs. `now` kills at once."""
        self.stop_asked_at = self.stop_asked_at or time.monotonic()
        self.stop_now = self.stop_now or now
        if self.stop_now:
            self.kill()
        elif not self.training():
            # A rank that is still importing looks at control/ only after its first step.
            self._signal_ranks()

    def _press_stop(self, now: float) -> None:
        patience = self.config.backend.shutdown_timeout_seconds
        if not self.training():
            patience = min(patience, EARLY_STOP_SECONDS)
        if now - (self.stop_asked_at or now) < patience:
            return
        if self.training() and self.signalled_at is None:
            self._signal_ranks()
        elif now - (self.signalled_at or 0.0) > TERM_GRACE_SECONDS:
            self.kill()

    def _signal_ranks(self) -> None:
        """TERM to every rank, through its wrapper. Never to torchrun while it has children."""
        self.signalled_at = time.monotonic()
        if self.torchrun.poll() is not None:
            # Its death told them already, and the pid may be another's by now.
            return
        wrappers = processes.children(self.torchrun.pid)
        processes.send(wrappers or [self.torchrun.pid], signal.SIGTERM)

    def kill(self) -> None:
        """Kill the ranks, give their wrappers time to write it down, then kill whatever is left."""
        self.killed = True
        self.killed_at = self.killed_at or time.time()
        processes.send(processes.marked_pids([self.job.job_id], EXIT_FD), signal.SIGKILL)
        deadline = time.monotonic() + WRAPPER_GRACE_SECONDS
        while time.monotonic() < deadline and self._wrappers_left():
            processes.reap_orphans()
            time.sleep(0.05)
        processes.end_marked([self.job.job_id], 0.0)

    def _wrappers_left(self) -> bool:
        if self.torchrun.poll() is None:
            return bool(processes.children(self.torchrun.pid))
        # They are orphans, and so is whatever else is left of the job.
        return bool(processes.marked_pids([self.job.job_id]))

    def finish(self) -> Verdict:
        """Wait for the last process of the attempt and judge it."""
        left = processes.end_marked([self.job.job_id], WRAPPER_GRACE_SECONDS)
        self.killed = self.killed or bool(left)
        self.torchrun.wait()
        self.poll()
        return judge(
            self.records,
            Circumstances(
                world_size=self.record.world_size,
                stop_requested=self.stop_asked_at is not None,
                killed_by_us=self.killed,
                killed_at=self.killed_at,
                hang=self.hang,
                stuck=self.stuck,
                memory=HostMemory.now().since(self.memory_before),
                pids={rank: watch.beat.process.pid for rank, watch in self.watches.items() if watch.beat},
                first_step=self.first_step,
                gone=tuple(sorted(self.gone_since)),
                launcher_signal=self.launcher_signal,
                mode=self.config.mode,
                launcher_message=f"torchrun ended with code {self.torchrun.returncode}; see logs/supervisor.log",
            ),
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
