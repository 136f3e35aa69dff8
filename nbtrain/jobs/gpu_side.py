"""Requests from the notebook side to the GPU side: a subprocess gets one JSON request and returns JSON lines.

    stream("nbtrain.inference", {...})  ->  python -m nbtrain.inference   < {"prompt": ...}
                                                                    > {"kind": "text", ...}  one per line

torch and deepspeed are imported only in the subprocess. Its errors are raised here as the same NbtrainError,
with the same message.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from nbtrain.base.errors import NbtrainError, named_error
from nbtrain.jobs.machine.environment import supervisor_environment

END_SECONDS = 5.0
LAST_LINES = 15


def stream(module: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run `python -m <module>` with `request`, and yield its response objects as they arrive.

    Lines that are not a JSON object are output of libraries and are skipped. Closing the iterator ends the
    process. If the process reports {"kind": "error", "error": class, "message": text}, an error of that
    class is raised; if it dies without an error report, an NbtrainError with its last output is raised.
    """
    # This is a file and not a pipe, because nothing reads it meanwhile and a full pipe would block the
    # process.
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=supervisor_environment(),
            text=True,
            encoding="utf-8",
        )
        assert process.stdin and process.stdout
        try:
            # If the process died before it read the request, its exit code and last output tell why.
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(json.dumps(request))
            for line in process.stdout:
                if (answer := _parsed(line)) is None:
                    continue
                if answer.get("kind") == "error":
                    raise named_error(answer)
                yield answer
            code = process.wait()
            if code != 0:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                raise NbtrainError(f"python -m {module} {how}. Its last output:\n{last_output(said)}")
        finally:
            _end(process)


def _parsed(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        return value if isinstance(value, dict) else None
    return None


def last_output(said: IO[bytes]) -> str:
    """Return the last lines of a process's output from the file `said`, indented."""
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    return "\n".join(f"  {line}" for line in lines)


def _end(process: subprocess.Popen) -> None:
    """End the process, which may still run if the caller has stopped reading."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()
