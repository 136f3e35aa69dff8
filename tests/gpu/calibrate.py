"""Step `calibrate`: runs the command `nbtrain calibrate` as a user would."""

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.gpu.cases import Case, Finding, Impossible, Place

COMMAND = (sys.executable, "-m", "nbtrain.cli", "calibrate")
LIMIT_SECONDS = 220.0


def cases(place: Place) -> Iterator[Case]:
    """Yield a single case, which runs the command."""
    yield Case("nbtrain calibrate", lambda: _find(place))


def _find(place: Place) -> Finding:
    place.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "NBTRAIN_WORKSPACE": str(place.folder.resolve())}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=LIMIT_SECONDS,
        )

    asked = call("--help")
    if "invalid choice" in asked.stderr:
        raise Impossible("not built: this version has no `nbtrain calibrate`")
    if asked.returncode:
        raise RuntimeError(asked.stderr.strip()[-500:])
    if not place.on_gpu:
        # It measures for minutes.
        return Finding("passed", "the verb is there; not run on a CPU")
    done = call()
    print(done.stdout + done.stderr, flush=True)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip()[-500:])
    return Finding("passed", "; ".join(line.strip() for line in done.stdout.strip().splitlines()[-12:]))
