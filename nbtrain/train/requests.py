"""What this rank is asked to do from outside: SIGTERM, and control/request.json on rank 0."""

import signal
import time
from types import FrameType

from nbtrain.base import files
from nbtrain.base.records import ControlRequest
from nbtrain.base.rundir import JobDir
from nbtrain.parallel.wishes import NOTHING, SAVE, STOP

ACTIONS = {"save": SAVE, "stop": STOP}


class Requests:
    """The strongest open wish of this rank; the ranks agree on the strongest of all."""

    def __init__(self, job: JobDir, rank: int):
        self.reason = ""
        self.limit = ""
        """Why the job ends itself (exit_limits.py), where it does."""
        self.job = job
        self._reads_file = rank == 0
        self._terminated = False
        self._request: ControlRequest | None = None
        acknowledged = files.read_json(job.control_ack) if self._reads_file else None
        self._done_id = acknowledged["request_id"] if acknowledged else 0
        signal.signal(signal.SIGTERM, self._on_terminate)

    def wish(self) -> int:
        """NOTHING, SAVE or STOP: nobody asks for LEAVE."""
        wanted = NOTHING
        if self._reads_file:
            request = ControlRequest.read(self.job.control_request)
            if request is not None and request.request_id > self._done_id:
                self._request = request
                self.reason = request.reason
                wanted = ACTIONS[request.action]
        if self._terminated:
            self.reason = self.reason or "SIGTERM"
            wanted = STOP
        return wanted

    def acknowledge(self, step: int) -> None:
        """Rank 0: the request seen last has been carried out."""
        if self._request is None or self._request.request_id <= self._done_id:
            return
        self._done_id = self._request.request_id
        files.write_json(
            self.job.control_ack,
            {
                "request_id": self._done_id,
                "action": self._request.action,
                "step": step,
                "time": time.time(),
            },
        )

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
