"""Background polling of a scheduler while a page shows one of its jobs: one thread for each job.

panel, wait -> look_after(job) -> thread: Backend.next_change, status -> engine.json -> every reader
"""

import contextlib
import threading
import time

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.observed_state import ENGINES
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.jobs.attempt.backend import backend_of

# Seconds between two requests to a scheduler.
ASK_SECONDS = 5.0
# Polling ends after this time without a call. A panel calls once a second, unless its page is hidden.
FORGET_SECONDS = 30.0

_looked_at: dict[str, float] = {}
_lock = threading.Lock()


def look_after(job: JobDir) -> None:
    """Start a thread that polls the scheduler of an active job, and return at once.

    The thread ends FORGET_SECONDS after the newest call for this job. A call for a job whose thread is
    running only keeps the thread alive. Nothing is started for jobs without a scheduler.
    """
    key, now = str(job.path), time.monotonic()
    with _lock:
        watched = key in _looked_at
        if watched:
            _looked_at[key] = now
            return
        record = JobRecord.read(job.job_json)
        if record is None or record.backend not in ENGINES or record.state not in ACTIVE:
            return
        _looked_at[key] = now
    thread = threading.Thread(
        target=_ask, args=(job, key, record.backend), name="nbtrain-engine", daemon=True
    )
    thread.start()


def _ask(job: JobDir, key: str, kind: str) -> None:
    try:
        # Errors in the record or of the disk are ignored here: the page that reads the record reports them.
        with contextlib.suppress(NbtrainError, OSError):
            backend = backend_of(kind)
            while backend.status(job)[0] in ACTIVE and time.monotonic() - _looked_at[key] < FORGET_SECONDS:
                backend.next_change(job, ASK_SECONDS)
    finally:
        with _lock:
            del _looked_at[key]
