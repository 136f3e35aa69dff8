"""Tensor activity of GPUs before Hopper, from `dcgmi dmon`, if DCGM is installed and its host engine runs.

The driver's own library measures tensor activity from Hopper on (nvml.py). DCGM measures it from Volta on, if
users of the machine may read profiling counters.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable

PROGRAM = "dcgmi"
# DCGM_FI_PROF_PIPE_TENSOR_ACTIVE
TENSOR_FIELD = 1004
EVERY_MILLISECONDS = 1000
# dcgmi exits within a second without a host engine or permission; the first value takes about two seconds.
FIRST_SECONDS = 3.0
# Matches "GPU 0      0.421". The value is N/A while it is not known.
LINE = re.compile(rb"\s*GPU\s+(\d+)\s+([0-9.]+)\s*")


class TensorActivity:
    """Fraction of time in which tensor cores were active, from dcgmi; used like nvml.TensorActivity."""

    def __init__(self, indices: Iterable[int], first_seconds: float = FIRST_SECONDS):
        """Start dcgmi and wait up to `first_seconds` for its first value."""
        self.supported = False
        """Whether dcgmi reports a value for any of these GPUs."""
        self._newest: dict[int, float] = {}
        self._rest = b""
        self._process: subprocess.Popen | None = None
        wanted = ",".join(str(index) for index in indices)
        if not wanted or shutil.which(PROGRAM) is None:
            return
        command = [PROGRAM, "dmon", "-e", str(TENSOR_FIELD), "-d", str(EVERY_MILLISECONDS), "-i", wanted]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        deadline = time.monotonic() + first_seconds
        while not self._newest and self._process.poll() is None and time.monotonic() < deadline:
            self._read()
            time.sleep(0.05)
        self.supported = bool(self._newest)
        if not self.supported:
            self.close()

    def sample(self) -> dict[int, float]:
        """Return {index: fraction} for the GPUs with a new value since the previous call."""
        self._read()
        found, self._newest = self._newest, {}
        return found

    def close(self) -> None:
        """End dcgmi. Otherwise, it ends when its pipe is closed."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            assert process.stdout is not None
            process.stdout.close()

    def _read(self) -> None:
        if self._process is None:
            return
        assert self._process.stdout is not None
        while True:
            try:
                content = os.read(self._process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not content:
                return
            *lines, self._rest = (self._rest + content).split(b"\n")
            for line in lines:
                found = LINE.fullmatch(line)
                if found and 0 <= (share := float(found[2])) <= 1:
                    self._newest[int(found[1])] = share
