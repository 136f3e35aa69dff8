"""Base class of backends whose supervisor runs where the job was submitted: local and hosts.

A supervisor is a detached process. Any machine can reach it through control/ask.json, which it reads several
times a second. On its own machine, a stop is also sent as a signal, because the file cannot be written to a
full disk. The identity in job.json (pid, start time, boot, host) ensures that the signal does not reach a
process that reuses the pid.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, QUEUED
from nbtrain.base.run_directory.node_records import Ask
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.workspace import display, workspace
from nbtrain.config.load import load_resolved
from nbtrain.jobs.attempt.backend import CAPABILITIES, Backend
from nbtrain.jobs.attempt.phases import stop_patience_seconds
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.environment import supervisor_environment
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.monitor.logs.logs import SUPERVISOR

# Seconds from the submission until the supervisor has recorded its identity.
SUPERVISOR_START_SECONDS = 60.0
# Seconds from that record until the supervisor starts ranks or reports what it waits for; the ranks of an
# earlier job may still be saving.
FIRST_WORD_SECONDS = 5.0
# Seconds from the job's final state until the supervisor has exited and so released the run's lock.
SUPERVISOR_END_SECONDS = 10.0
POLL_SECONDS = 0.1
LAST_WORDS_LINES = 10
# {request: signal that is sent with it}. 0 means no signal: a save request received twice would save twice.
SIGNALS = {"stop": signal.SIGTERM, "stop_now": signal.SIGQUIT, "save": 0}


class SupervisedHere(Backend):
    """Backend for jobs whose supervisor is a detached process on the machine where they were submitted."""

    capabilities = CAPABILITIES["local"]
    end_seconds = SUPERVISOR_END_SECONDS

    def submit(self, job: JobDir) -> None:
        """Start the detached supervisor and wait until it owns the job."""
        starter = processes.start(
            [sys.executable, "-m", "nbtrain.jobs.supervisor", str(job.run.path), job.job_id],
            job.supervisor_log,
            env=supervisor_environment(),
            cwd=workspace() if workspace().is_dir() else Path("/"),
        )
        starter.wait()
        deadline = time.monotonic() + SUPERVISOR_START_SECONDS
        while starter.returncode == 0 and time.monotonic() < deadline:
            record = JobRecord.read(job.job_json)
            if record and record.supervisor:
                return
            time.sleep(0.02)
        log_end = "\n".join(f"  {line}" for line in self.logs(job, SUPERVISOR, LAST_WORDS_LINES))
        raise SubmitError(f"{display(job.path)}: the supervisor did not start. Its log:\n{log_end}")

    def await_first_word(self, job: JobDir) -> None:
        """Wait until ranks start or a reason for waiting is known.

        Otherwise, the state QUEUED without a cause would suggest that the job waits in the queue.
        """
        deadline = time.monotonic() + FIRST_WORD_SECONDS
        while time.monotonic() < deadline:
            record = JobRecord.read(job.job_json)
            if record is None or record.state != QUEUED or record.cause:
                return
            time.sleep(0.02)

    def cancel(self, job: JobDir, now: bool) -> bool:
        """Ask the supervisor to save and exit, or with `now` to exit at once; return False if it is gone."""
        return self._ask_supervisor(job, "stop_now" if now else "stop")

    def save(self, job: JobDir) -> bool:
        """Ask the supervisor for a checkpoint; return False if the supervisor is gone."""
        return self._ask_supervisor(job, "save")

    def finish(self, job: JobDir, now: bool) -> None:
        """End the ranks of a LOST job; for any other job, wait until its supervisor has exited.

        A supervisor exits some time after it has written the job's final state.
        """
        if self.status(job)[0] == LOST:
            # With --now, the configuration is not read, because it may be unreadable.
            seconds = 0.0 if now else stop_patience_seconds(job.run, load_resolved(job.run.config_yaml))
            # A user who ends a lost job does not want it to be restarted. Its ticket may be on another
            # machine, which then finds this request. Deleting a run on a full disk must not fail.
            with contextlib.suppress(OSError):
                Ask.put(job.control_ask, "stop")
            try:
                self.end_ranks(job, seconds)
            finally:
                Queue().remove(job)
            return
        record = JobRecord.read(job.job_json)
        deadline = time.monotonic() + self.end_seconds
        while record and record.supervisor and record.supervisor.alive() and time.monotonic() < deadline:
            if record.supervisor.pid == os.getpid():
                return
            time.sleep(0.02)

    def end_ranks(self, job: JobDir, grace_seconds: float) -> None:
        """Make the processes of a LOST job save and exit; kill those that are left after `grace_seconds`."""
        raise NotImplementedError

    def _ask_supervisor(self, job: JobDir, action: str) -> bool:
        """Send `action` to the supervisor; if the supervisor is still starting, wait for it first.

        Returns False if the supervisor is gone.
        """
        while self.status(job)[0] in ACTIVE:
            record = JobRecord.read(job.job_json)
            if record and record.supervisor:
                break
            time.sleep(POLL_SECONDS)
        else:
            return False
        if not record.supervisor.elsewhere():
            # The signal is sent first, because the kernel refuses to signal another user's supervisor, even
            # if its folder is writable.
            processes.send([record.supervisor.pid], SIGNALS[action])
        try:
            Ask.put(job.control_ask, action)
        except OSError:
            if record.supervisor.elsewhere() or not SIGNALS[action]:
                raise
        return True
