"""Run backend.preemption_notice at intervals: a program that exits with 0 once this machine is about to be
taken away.

The program is a child process that is never waited for, so that a metadata service that does not answer
delays neither ranks nor signals.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from nbtrain.base.addresses import text_without_secrets
from nbtrain.base.workspace import resolved_program
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine import processes

TIMEOUT_SECONDS = 10.0
# Bytes at the end of the program's output in which its last line is searched.
OUTPUT_BYTES = 2000
MOST_CHARS = 200


class PreemptionNotice:
    """The program of one machine and its newest answer."""

    def __init__(self, command: Sequence[str], interval_seconds: float):
        self._command = list(command)
        self._interval_seconds = interval_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._started_at = float("-inf")
        self._answer = ""
        self.trouble = ""
        """Reason why the newest run of the program gave no answer; "" if it gave one."""

    def look(self) -> str:
        """Start the program if it is due, read its end if it has ended, and return the notice; "" without
        one. Never blocks.
        """
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._read(code)
            elif now - self._started_at > TIMEOUT_SECONDS:
                self._kill()
                self._note("", f"took more than {TIMEOUT_SECONDS:g} s and was killed")
        if self._command and self._process is None and now - self._started_at >= self._interval_seconds:
            self._start(now)
        return self._answer

    def close(self) -> None:
        """End the program if it runs."""
        if self._process is not None:
            self._kill()

    def _start(self, now: float) -> None:
        self._started_at = now
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (open until the program ends)
        try:
            self._process = subprocess.Popen(
                [resolved_program(self._command[0]), *self._command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # Without it, the code of a child that was reaped as an orphan would read as 0, which is a notice.
            processes.keep_exit_code(self._process)
        except (OSError, ValueError) as error:
            self._output.close()
            self._note("", f"did not start: {error}")

    def _read(self, code: int) -> None:
        assert self._process is not None and self._output is not None
        processes.exit_code_is_read(self._process)
        with self._output as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
        self._process = self._output = None
        last = text_without_secrets(next((line for line in reversed(lines) if line), ""))[:MOST_CHARS]
        said = f": {last}" if last else ""
        if code == 0:
            self._note(f"backend.preemption_notice ({shlex.join(self._command[:1])}) gave notice{said}", "")
        elif code < 0:
            self._note("", f"was killed by {signal.Signals(-code).name}")
        else:
            self._note("", "")

    def _note(self, answer: str, trouble: str) -> None:
        self._answer = answer
        self.trouble = trouble and f"backend.preemption_notice: {self._command[0]} {trouble}"

    def _kill(self) -> None:
        assert self._process is not None and self._output is not None
        # The whole process group: a script may wait for a child.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        processes.exit_code_is_read(self._process)
        self._output.close()
        self._process = self._output = None


def notice_of(config: RunConfig) -> PreemptionNotice:
    """Return the notice of a run's machines."""
    backend = config.backend
    return PreemptionNotice(backend.preemption_notice, backend.preemption_notice_interval_seconds)
