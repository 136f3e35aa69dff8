"""After a restart of the machine, restart the jobs that were waiting or running, in their order.

    python -m nbtrain.jobs.queue                     all of these jobs
    python -m nbtrain.jobs.queue RUN_DIR JOB_ID      one job, in the environment of its ticket

Each run continues as with `nbtrain resume`: a new job starts from the newest complete checkpoint. This
happens automatically for jobs that were started before the last restart of the machine or container
(after_boot.py). A job whose supervisor was killed later is restarted only by `nbtrain queue --restart`.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nbtrain.base.run_directory.jobstate import QUEUED
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.jobs.machine.environment import kept_variables
from nbtrain.jobs.machine.queue_folder import Queue, Ticket
from nbtrain.jobs.queue.after_boot import MODULE, from_before

# Seconds for restarting one job, whose checks read its data and call the GPU driver.
START_SECONDS = 300.0
POLL_SECONDS = 0.1


def restart(queue: Queue, everything: bool, say: Callable[[str], None]) -> None:
    """Restart the jobs that a restart of the machine ended, one after another.

    With `everything`, also restart jobs whose supervisor was killed later, and jobs whose restart has failed.
    """
    if not queue.path.is_dir():
        return
    with (queue.path / "restart").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return say("Another process is already restarting the jobs.")
        for listed in queue.lost() if everything else from_before(queue):
            # Restarting the previous job took time, so this job may have been cancelled or resumed since.
            if (ticket := still_lost(queue, listed.job)) is None:
                continue
            wrong = start_again(ticket)
            say(f"{ticket.name}: {wrong or 'restarted'}")
            if not wrong:
                await_place(queue, RunDir(ticket.run))
            with queue.locked():
                if wrong and (now := still_lost(queue, ticket.job)):
                    queue.write(replace(now, refused=wrong))


def still_lost(queue: Queue, job: JobDir) -> Ticket | None:
    """Return the current ticket of a lost job; None if its run has continued or has a newer job."""
    return next(
        (ticket for ticket in queue.lost() if (ticket.run, ticket.job_id) == (str(job.run.path), job.job_id)),
        None,
    )


def await_place(queue: Queue, run: RunDir) -> None:
    """Wait until the run's new job is in the queue.

    Otherwise, a later job could overtake it while the run's old ranks are still saving.
    """
    deadline = time.monotonic() + START_SECONDS
    while (job := run.newest_job()) and time.monotonic() < deadline:
        if queue.ticket(job) or read_state(job, time.time())[0] != QUEUED:
            return
        time.sleep(POLL_SECONDS)


def start_again(ticket: Ticket) -> str:
    """Restart a lost job with the environment variables in its ticket.

    Returns the error message; "" if the job was restarted.
    """
    command = [ticket.python or sys.executable, "-m", MODULE, ticket.run, ticket.job_id]
    environment = kept_variables(dict(os.environ), ticket.variables)
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            env=environment,
            timeout=START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"`nbtrain resume` did not finish within {START_SECONDS:g} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return "" if answer.returncode == 0 else answer.stdout.strip()[-2000:] or f"code {answer.returncode}"


def go_on(run_dir: str, job_id: str) -> None:
    """Resume a lost job's run with the priority of its ticket. Raises the same errors as resume()."""
    from nbtrain.base.run_directory.records import JobRecord
    from nbtrain.jobs.submission.submit import TRAINER, resume

    run = RunDir(Path(run_dir))
    job = run.job(job_id)
    queue, record = Queue(), JobRecord.read(job.job_json)
    ticket = queue.ticket(job)
    config = load_resolved(run.config_yaml)
    priority = ticket.priority if ticket else config.backend.priority
    # The lost job's mode is kept; resume() would otherwise treat the job as a finished trial.
    overrides = [f"mode={config.mode}", f"backend.priority={priority}"]
    command = tuple(record.command) if record and record.command else TRAINER
    resume(run, overrides, command=command, wanted=lambda: still_lost(queue, job) is not None)
