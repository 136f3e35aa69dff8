"""Run backend.preemption_notice at intervals, to learn whether this machine is about to be taken away.

The program exits with 0 if the machine is about to be taken away. It runs as a child process that no caller
waits for, so that a metadata service that does not respond delays neither ranks nor signals.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence

from nbtrain.base.text.addresses import text_without_secrets
from nbtrain.base.workspace import resolved_program
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine import processes

TIMEOUT_SECONDS = 10.0
# Seconds that close() waits for a program that it has killed.
CLOSE_SECONDS = 1.0
# Bytes at the end of the program's output that are searched for its last line.
OUTPUT_BYTES = 2000
# Capacity of a pipe in bytes. A program that prints more waits until the next poll, so nothing else fills up.
PIPE_BYTES = 1 << 16
MOST_CHARS = 200


class PreemptionNotice:
    """The program that reports a machine's preemption, and its newest result."""

    def __init__(self, command: Sequence[str], interval_seconds: float):
        self._command = list(command)
        self._interval_seconds = interval_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._killed = False
        self._started_at = float("-inf")
        self._answer = ""
        self.trouble = ""
        """Why the newest run of the program gave no result; "" if it gave a result."""

    def poll(self) -> str:
        """Start the program if it is due, or read its result if it has ended; return the current notice.

        The notice is "" if the machine is not about to be taken away. This never blocks.
        """
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            self._read_output()
            if code is not None:
                self._has_ended(code)
            elif now - self._started_at > TIMEOUT_SECONDS and not self._killed:
                # A later poll sees the program's end, because a program that waits for a dead disk does not
                # end at once.
                self._kill()
                self._note("", f"took more than {TIMEOUT_SECONDS:g} s and was killed")
        if self._command and self._process is None and now - self._started_at >= self._interval_seconds:
            self._start(now)
        return self._answer

    def close(self) -> None:
        """Kill the program if it is running."""
        if self._process is not None:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS)
            self._forget()

    def _start(self, now: float) -> None:
        self._started_at, self._output, self._killed = now, b"", False
        try:
            self._process = subprocess.Popen(
                [resolved_program(self._command[0]), *self._command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._note("", f"did not start: {error}")
            return
        # Otherwise, a child that was reaped as an orphan would have the exit code 0, which means a notice.
        processes.keep_exit_code(self._process)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _read_output(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            printed = os.read(self._process.stdout.fileno(), PIPE_BYTES)
            self._output = (self._output + printed)[-OUTPUT_BYTES:]

    def _has_ended(self, code: int) -> None:
        self._forget()
        if self._killed:
            return
        lines = [line.strip() for line in self._output.decode(errors="replace").splitlines()]
        last = text_without_secrets(next((line for line in reversed(lines) if line), ""))[:MOST_CHARS]
        detail = f": {last}" if last else ""
        if code == 0:
            self._note(f"backend.preemption_notice ({shlex.join(self._command[:1])}) gave notice{detail}", "")
        elif code < 0:
            self._note("", f"was killed by {processes.signal_name(-code)}")
        else:
            self._note("", "")

    def _note(self, answer: str, trouble: str) -> None:
        self._answer = answer
        self.trouble = trouble and f"backend.preemption_notice: {self._command[0]} {trouble}"

    def _kill(self) -> None:
        assert self._process is not None
        self._killed = True
        # The whole process group is killed, because a script may wait for a child. Another user's program,
        # as started by sudo, cannot be killed.
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _forget(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        processes.exit_code_is_read(self._process)
        self._process.stdout.close()
        self._process = None


def notice_of(config: RunConfig) -> PreemptionNotice:
    """Return the PreemptionNotice with the run's settings."""
    backend = config.backend
    return PreemptionNotice(backend.preemption_notice, backend.preemption_notice_interval_seconds)
