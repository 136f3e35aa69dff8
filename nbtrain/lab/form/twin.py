"""The twin that the form starts: `nbtrain twin` in a separate process, which outlives server and kernel.

output/.twins/<run>.yaml   the form's run, resolved
output/.twins/<run>.log    the process's output; its report is twin.json in the twin's run directory
"""

import json
import subprocess
import sys
import time

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.rundir import RunDir, run_folders
from nbtrain.base.workspace import display, output_root
from nbtrain.config.load import to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine.environment import supervisor_environment

COMMAND = ("-m", "nbtrain.cli", "twin", "--submit")
# Run names contain no dots, so no run can have this name.
FOLDER = ".twins"
# Maximum time until the twin's folder appears: the process imports modules and checks the twin first.
START_SECONDS = 90.0
POLL_SECONDS = 0.2
LAST_CHARACTERS = 2000


def start_twin(config: RunConfig) -> str:
    """Start the twin of a checked run. Return the twin's name as soon as its folder exists.

    Raises SubmitError with the process's last output if the process ends before the folder exists, and
    SubmitError if the folder does not exist after START_SECONDS.
    """
    folder = output_root() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    yaml, log = (folder / f"{config.name}.{ending}" for ending in ("yaml", "log"))
    files.write_text(yaml, to_yaml(config))
    began = time.time()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, str(yaml)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=supervisor_environment(),
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll()
        if name := _made_since(config.name, began):
            return name
        if ended is not None:
            said = log.read_text(errors="replace")[-LAST_CHARACTERS:].strip()
            raise SubmitError(said or f"the twin ended with exit code {ended}; its log is {display(log)}.")
        time.sleep(POLL_SECONDS)
    raise SubmitError(
        f"the twin has not started within {START_SECONDS:.0f} s; it may still start. Its log is "
        f"{display(log)}."
    )


def _made_since(twin_of: str, began: float) -> str | None:
    """Return the name of the run's twin if its run.json was written after `began`, else None."""
    for folder in run_folders(output_root()):
        path = RunDir(folder).run_json
        try:
            if path.stat().st_mtime < began - POLL_SECONDS:
                continue
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if record.get("twin_of") == twin_of and record.get("created_at", 0.0) >= began:
            return folder.name
    return None
