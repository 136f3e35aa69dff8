"""Base class of backends whose supervisor runs elsewhere.

Requests reach the supervisor as files. The job's state has three sources, most trusted first: the job's own
records, the scheduler's report, and the record of a scheduler that does not respond. The process that queries
the scheduler writes the report to engine.json, so that readers need not query the scheduler again
(base/run_directory/jobstate.py).
"""

import contextlib
import time
from dataclasses import replace

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.run_directory.jobstate import ACTIVE, FAILED, FINAL, QUEUED, SUSPENDED
from nbtrain.base.run_directory.node_records import Ask, EngineWord
from nbtrain.base.run_directory.observed_state import ENGINE_SILENCE_SECONDS, at_rest, read_state
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.workspace import display
from nbtrain.config.load import load_resolved
from nbtrain.jobs.attempt.backend import Backend
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.pause import stopped_while_paused

# Shortest time in seconds between two queries of the scheduler about a job, by all processes together.
ASK_SECONDS = 5.0
# Seconds from a stop request until the scheduler is asked to end the remaining processes.
END_SECONDS = 30.0


class EngineUnseen(Exception):
    """Raised when the scheduler does not respond; the message is shown to the user."""


class EngineAway(EngineUnseen):
    """Raised when the scheduler's commands are not installed or not configured on this machine."""


class RemoteBackend(Backend):
    """Backend for jobs whose supervisor runs where the scheduler placed it."""

    def ask_engine(self, job: JobDir) -> EngineWord:
        """Return the scheduler's current report on the job. Raises EngineUnseen if it does not respond."""
        raise NotImplementedError

    def end_in_engine(self, job: JobDir) -> None:
        """Make the scheduler end the job. Raises EngineUnseen and JobError."""
        raise NotImplementedError

    def status(self, job: JobDir) -> tuple[str, str | None]:
        """Return (state, cause) from the job's records and the scheduler's newest report."""
        record = JobRecord.read(job.job_json)
        if record is not None and record.state in ACTIVE:
            self.engine_word(job)
        return read_state(job, time.time())

    def engine_word(self, job: JobDir, at_once: bool = False) -> EngineWord | None:
        """Return the scheduler's report on the job, requested again if it is old or `at_once` is True.

        Returns None if this machine cannot query the scheduler and no earlier report exists.
        """
        before = EngineWord.read(job.engine_json)
        if before and not at_once and 0 <= time.time() - before.asked_at < ASK_SECONDS:
            return before
        try:
            word = self.ask_engine(job)
            if word.state is None and before and before.state in FINAL and before.engine == word.engine:
                # Schedulers forget ended jobs after some minutes, so the earlier report is kept.
                word = replace(before, asked_at=word.asked_at, seen=True, trouble="")
        except EngineAway as error:
            # This machine cannot query the scheduler, so an earlier report from a machine that can is kept.
            return before and replace(before, seen=False, trouble=str(error))
        except EngineUnseen as error:
            last = before or EngineWord(None, "", 0.0)
            word = replace(last, asked_at=time.time(), seen=False, trouble=str(error))
        # The disk may be full, or read-only on this machine.
        with contextlib.suppress(OSError):
            word.write(job.engine_json)
        return word

    def settle(self, job: JobDir) -> None:
        """Give the supervisor time to record the end of a job that the scheduler has already ended."""
        deadline = time.monotonic() + ENGINE_SILENCE_SECONDS + ASK_SECONDS
        record = JobRecord.read(job.job_json)
        if record is None or record.state not in ACTIVE or record.supervisor is None:
            return
        while time.monotonic() < deadline:
            word = self.engine_word(job)
            if word is None or not word.seen or word.state not in FINAL or self.status(job)[0] not in ACTIVE:
                return
            time.sleep(1.0)

    def cancel(self, job: JobDir, now: bool) -> bool:
        """Ask the supervisor to save and exit, or remove a waiting job from the scheduler's queue.

        Returns False if the job is not active.
        """
        record = JobRecord.read(job.job_json)
        if record is None or self.status(job)[0] not in ACTIVE:
            return False
        if at_rest(record):
            self.end_at_rest(job)
            return True
        Ask.put(job.control_ask, "stop_now" if now else "stop")
        # A suspended supervisor reads nothing.
        if record.supervisor is None or self.status(job)[0] in (QUEUED, SUSPENDED):
            self._end_in_engine(job)
            self.engine_word(job, at_once=True)
        return True

    def end_at_rest(self, job: JobDir) -> None:
        """Write the final state of a paused job, which has released its allocation and has no supervisor."""
        with job.run.locked():
            journal = Journal(job)
            if at_rest(journal.record):
                journal.config = load_resolved(job.run.config_yaml)
                journal.end(stopped_while_paused(journal.record.cause or ""))

    def save(self, job: JobDir) -> bool:
        """Ask the supervisor for a checkpoint; return False if the job is not active."""
        if self.status(job)[0] not in ACTIVE:
            return False
        Ask.put(job.control_ask, "save")
        return True

    def finish(self, job: JobDir, now: bool) -> None:
        """Wait until the scheduler reports that the job has ended, and make it end the job if necessary."""
        deadline = time.monotonic() + (0 if now else END_SECONDS)
        while True:
            word = self.engine_word(job, at_once=True)
            if word is None or not word.seen or word.state not in ACTIVE:
                return
            if time.monotonic() >= deadline:
                self._end_in_engine(job)
                return
            time.sleep(1.0)

    def refused(self, job: JobDir, cause: str) -> SubmitError:
        """Mark a job that the scheduler rejected as FAILED, and return the error to raise."""
        record = JobRecord.read(job.job_json)
        assert record is not None, "submit() is called when job.json is written"
        record.state, record.cause = FAILED, cause
        record.mark("ended_at")
        record.write(job.job_json)
        return SubmitError(f"{display(job.run.path)}: {cause}")

    def _end_in_engine(self, job: JobDir) -> None:
        """Make the scheduler end the job. Raises JobError if the scheduler does not respond."""
        try:
            self.end_in_engine(job)
        except EngineUnseen as error:
            raise JobError(
                f"{display(job.run.path)}: the scheduler cannot end job {job.job_id} now: {error}. "
                "The stop request is kept; try again when the scheduler responds."
            ) from error
