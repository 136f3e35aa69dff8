"""What signals ask of a supervisor: TERM and INT stop, QUIT stops at once, USR1 saves, HUP is ignored."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

LOOK_SECONDS = 0.2


@dataclass
class Asked:
    """What was asked so far. Signal handlers set it; the supervisor's loop acts on it."""

    stop: bool = False
    """Save and leave."""
    stop_now: bool = False
    """Leave without saving."""
    save: bool = False
    """Save and go on; the loop takes it back once the ranks have been asked."""

    def listen(self) -> "Asked":
        """Take this process's signals from here on."""

        def stop(number: int, frame: object) -> None:
            self.stop = True
            self.stop_now = self.stop_now or number == signal.SIGQUIT

        def save(number: int, frame: object) -> None:
            self.save = True

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, stop)
        signal.signal(signal.SIGUSR1, save)
        return self

    def stop_within(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait `seconds`, calling `meanwhile`, or until a stop is asked for; returns whether it was."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.stop:
            meanwhile()
            time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
        return self.stop
