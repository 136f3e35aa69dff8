"""Requests to a supervisor, by signals and by control/ask.json.

TERM and INT stop the job, QUIT stops it without saving, USR1 saves a checkpoint, and HUP is ignored. Inside
an allocation, USR1 announces that its time limit is near: the ranks save and exit, and the run continues in
the next allocation. There, TERM comes from the scheduler, which may start the job again.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from nbtrain.base.run_directory.node_records import STOPS, Ask
from nbtrain.base.run_directory.rundir import JobDir

POLL_SECONDS = 0.2


# Reasons for the ranks to exit.
REQUEST, PAUSE, DEADLINE, PREEMPTION = "a request", "a pause", "the deadline", "a preemption"
ALLOCATION = "the time limit of its allocation"
ENGINE = "a signal from its scheduler (TERM, as scancel or a deleted pod sends it)"


@dataclass
class SignalRequests:
    """Requests received so far. Signal handlers set them, and the supervisor's loop acts on them."""

    stop: bool = False
    """Whether the ranks must save and exit."""
    stop_now: bool = False
    """Whether the ranks must exit without saving."""
    save: bool = False
    """Whether to save and continue. The loop resets this once the ranks have received the request."""
    why: str = ""
    """Reason for a stop: one of the constants above, or "" without a stop. REQUEST overrides the others."""
    _last_ask: Ask | None = None

    def listen(self, in_allocation: bool = False) -> "SignalRequests":
        """Install the signal handlers of this process; return self."""

        def stop(number: int, frame: object) -> None:
            if not in_allocation:
                self.stop, self.why = True, REQUEST
            elif self.why != REQUEST:
                self.stop, self.why = True, ENGINE
            self.stop_now = self.stop_now or number == signal.SIGQUIT

        def save(number: int, frame: object) -> None:
            if in_allocation:
                self.leave(ALLOCATION)
            else:
                self.save = True

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, stop)
        signal.signal(signal.SIGUSR1, save)
        return self

    def leave(self, why: str) -> None:
        """Make the ranks save and exit for the reason `why`, unless a stop is already requested."""
        if not self.stop:
            self.stop, self.why = True, why

    def read_ask(self, job: JobDir, at_start: bool = False) -> None:
        """Read control/ask.json and obey each request once.

        Processes on other hosts reach a supervisor through this file. At its start, a supervisor obeys only a
        stop request: an older save request was for the previous supervisor, whose ranks saved on exit.
        """
        ask, last = Ask.read(job.control_ask), self._last_ask
        # Two requests made at the same moment have the same number, and a network disk may show an older
        # request again.
        if ask is None or ask == last or (last and ask.number < last.number):
            return
        self._last_ask = ask
        if ask.action in STOPS:
            self.stop, self.why = True, REQUEST
            self.stop_now = self.stop_now or ask.action == "stop_now"
        elif ask.action == "save" and not at_start:
            self.save = True

    def stop_within(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait for `seconds` or until a stop is requested; return whether a stop was requested.

        `meanwhile` is called at every poll.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.stop:
            meanwhile()
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        return self.stop
