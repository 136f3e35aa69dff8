"""Restart jobs that ended with a restart of the machine: python -m nbtrain.jobs.queue [RUN_DIR JOB_ID]."""

import os
import sys

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals


def main() -> int:
    """Restart the given job, or without arguments all lost jobs in a separate process.

    Returns the exit code.
    """
    # The caller waits only for this process, so no zombie is left in a notebook kernel or server.
    if len(sys.argv) == 1 and os.fork():
        return 0
    from nbtrain.jobs.machine.queue_folder import Queue
    from nbtrain.jobs.queue.restart import go_on, restart

    try:
        if len(sys.argv) == 3:
            go_on(sys.argv[1], sys.argv[2])
        else:
            restart(Queue(), everything=False, say=lambda line: print(line, flush=True))
    except NbtrainError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
