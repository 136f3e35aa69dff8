"""Polling interval of pages that show an active run, so that many open pages cost the server little.

    PACE.spent(cpu_seconds)  ->  PACE.seconds  ->  "look_again_seconds" of the response  ->  the page

One page polls once a second. If the requests of the last ten seconds took more than LOOKS_SHARE of a core,
pages are instructed to wait longer in proportion. Job pages have a separate share (PAGES): within
`PAGES.seconds` a job page is served from a cache.
"""

import threading
import time

LOOKS_SHARE = 0.02
PAGES_SHARE = 0.007
LEAST_SECONDS, MOST_SECONDS = 1.0, 10.0
WINDOW_SECONDS = 10.0
# CPU seconds of a request besides reading the run: authentication, headers, sending. Measured with
# jupyter_server 2.21 on two busy cores: 2.1 ms in the server's main thread, plus the time of its pool.
REQUEST_SECONDS = 0.0025


class Pace:
    """Measures the cost of polls and derives the polling interval from it. Thread-safe."""

    def __init__(self, share: float) -> None:
        self.seconds = LEAST_SECONDS
        self._share = share
        self._spent = 0.0
        self._since: float | None = None
        self._lock = threading.Lock()

    def spent(self, cpu_seconds: float, now: float | None = None) -> float:
        """Add the CPU time of one poll, and return the polling interval in seconds."""
        now = time.monotonic() if now is None else now
        with self._lock:
            if self._since is None or now - self._since > 2 * MOST_SECONDS:
                # The first poll reads and loads much more than the next ones.
                self._since, self._spent = now, 0.0
                return self.seconds
            self._spent += cpu_seconds + REQUEST_SECONDS
            if now - self._since >= WINDOW_SECONDS:
                share = self._spent / (now - self._since)
                wanted = self.seconds * share / self._share
                self.seconds = round(min(MOST_SECONDS, max(LEAST_SECONDS, wanted)), 1)
                self._since, self._spent = now, 0.0
            return self.seconds


PACE = Pace(LOOKS_SHARE)
PAGES = Pace(PAGES_SHARE)
