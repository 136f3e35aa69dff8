"""Run a job's supervisor: python -m nbtrain.jobs.supervisor [--foreground] RUN_DIR JOB_ID.

A backend starts it. --foreground is for an allocation or a pod: the process does not detach, and the signal
USR1 announces the end of the allocation.
"""

import sys
from pathlib import Path

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.node.prepared import prepared_in_allocation
from nbtrain.jobs.supervisor.supervise import main

if __name__ == "__main__":
    hear_signals()
    arguments = [argument for argument in sys.argv[1:] if argument != "--foreground"]
    if len(arguments) != 2:
        sys.exit(
            "usage: python -m nbtrain.jobs.supervisor [--foreground] RUN_DIR JOB_ID   "
            "(nbtrain submit starts it)"
        )
    foreground = len(arguments) < len(sys.argv) - 1
    if foreground:
        try:
            to_leave = prepared_in_allocation(JobDir(RunDir(Path(arguments[0])), arguments[1]))
        except (NbtrainError, ValueError, OSError) as error:
            to_leave = str(error)
        if to_leave:
            sys.exit(f"nbtrain supervisor: {to_leave}")
    sys.exit(main(arguments[0], arguments[1], foreground=foreground))
