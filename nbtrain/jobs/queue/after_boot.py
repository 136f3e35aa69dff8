"""Check whether the machine was restarted while its queue had jobs, and restart these jobs.

Most commands begin with this check, and Jupyter Server makes it when it starts. The check lists one folder;
restart.py restarts the jobs in a separate process.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtrain.base.errors import NbtrainError
from nbtrain.base.workspace import display, queue_folder

if TYPE_CHECKING:
    from nbtrain.jobs.machine.queue_folder import Queue, Ticket

MODULE = "nbtrain.jobs.queue"


def from_before(queue: "Queue") -> "list[Ticket]":
    """Return the tickets of the jobs that the last restart of the machine ended.

    Jobs that could not be restarted since then are omitted.
    """
    from nbtrain.jobs.machine.queue_folder import system_start

    if not queue.path.is_dir():
        return []
    here = system_start()
    return [ticket for ticket in queue.lost() if ticket.system != here and not ticket.refused]


def start_after_boot(say: Callable[[str], object]) -> None:
    """Restart the jobs of from_before() in the background, and report their names. Never raises an error."""
    try:
        _start_after_boot(say)
    except FileNotFoundError:
        return  # no job was ever queued on this machine
    except (OSError, NbtrainError) as error:
        # A damaged queue must not stop a command that does not use it.
        why = error.strerror if isinstance(error, OSError) else str(error)
        say(
            f"{display(queue_folder())}: this machine's queue cannot be read, so its jobs are not "
            f"restarted: {why}"
        )


def _start_after_boot(say: Callable[[str], object]) -> None:
    if os.listdir(queue_folder() / "tickets"):
        # Imported here because these modules take 20 ms to load, and on most machines no job waits.
        import subprocess

        from nbtrain.jobs.machine.queue_folder import Queue

        queue = Queue()
        if left := from_before(queue):
            with (queue.path / "restart.log").open("ab") as log:
                subprocess.run(
                    [sys.executable, "-m", MODULE],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**os.environ, "NBTRAIN_QUEUE": str(queue.path)},
                    start_new_session=True,
                )
            names = ", ".join(ticket.name for ticket in left)
            say(
                f"The machine was restarted. These jobs from its queue are being restarted: {names}. To list "
                "the queue, run `nbtrain queue`."
            )
