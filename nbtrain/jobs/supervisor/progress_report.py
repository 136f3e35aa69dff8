"""Post training progress to the job's scheduler, if the scheduler has provided an address.

A separate thread posts, so that a server that does not respond delays neither the supervisor's checks nor its
signals. The first failure is recorded as an event, and the training continues.
"""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.jobs.supervisor.journal import Journal

if TYPE_CHECKING:
    from nbtrain.jobs.backends.kubernetes.trainer_status import TrainerStatus

# Environment variables that may contain the scheduler's address. A TrainJob's operator sets one of them in
# the pod, together with a token and a certificate (backends/kubernetes/trainer_status.py).
PLACES = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_STATUS_URL")
# Seconds to wait for the last report at the end of the job.
END_SECONDS = 6.0


class ProgressReport:
    """Sender of rank 0's progress to the job's scheduler, at intervals and at the end of the job."""

    def __init__(self, journal: Journal, environment: Mapping[str, str] = os.environ):
        self._journal = journal
        self._status: TrainerStatus | None = None
        self._thread: threading.Thread | None = None
        self._told = False
        if place := next((name for name in PLACES if name in environment), ""):
            from nbtrain.jobs.backends.kubernetes import trainer_status

            self._status = trainer_status.TrainerStatus.of(environment)
            if self._status is None:
                prefix = place.removesuffix("URL")
                self._tell(
                    f"{place} is not an https address, or one of {prefix}TOKEN and {prefix}CA_CERT is not set"
                )

    def poll(self, beat: Heartbeat | None) -> None:
        """Start a report if the next one is due and the previous one has ended."""
        status = self._status
        if status is None or beat is None or beat.progress is None:
            return
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if status.trouble:
                self._tell(status.trouble)
        if self._thread is None and status.due():
            self._start(status, beat)

    def close(self, beat: Heartbeat | None) -> None:
        """Send the last metrics, and wait up to END_SECONDS for the response."""
        status = self._status
        if status is None:
            return
        if self._thread is not None:
            self._thread.join(END_SECONDS)
        if beat is not None and beat.progress is not None:
            self._start(status, beat)
            assert self._thread is not None
            self._thread.join(END_SECONDS)
        if status.trouble:
            self._tell(status.trouble)

    def _start(self, status: "TrainerStatus", beat: Heartbeat) -> None:
        assert beat.progress is not None
        self._thread = threading.Thread(target=status.report, args=(beat.progress, beat.step), daemon=True)
        self._thread.start()

    def _tell(self, why: str) -> None:
        """Record the first failure as an event.

        Later failures are not recorded: an event every 30 seconds for a month would flood the events.
        """
        if not self._told:
            self._told = True
            self._journal.event("warning", f"progress is not reported to the scheduler: {why}")
