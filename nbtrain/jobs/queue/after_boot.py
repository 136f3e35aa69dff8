"""The check with which most commands begin: was the machine restarted while its queue had jobs?

Jupyter Server runs it when it starts. The check lists one folder; restart.py does the work in a separate
process.
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
    """Return tickets that were written before the machine was restarted and have not been refused since."""
    from nbtrain.jobs.machine.queue_folder import system_start

    if not queue.path.is_dir():
        return []
    here = system_start()
    return [ticket for ticket in queue.lost() if ticket.system != here and not ticket.refused]


def start_after_boot(say: Callable[[str], object]) -> None:
    """Restart such jobs in the background, and report which jobs those are. Never raises an error."""
    try:
        _start_after_boot(say)
    except FileNotFoundError:
        return  # no job of this machine was ever queued
    except (OSError, NbtrainError) as error:
        # A damaged queue must not stop a command that does not use it.
        why = error.strerror if isinstance(error, OSError) else str(error)
        say(
            f"{display(queue_folder())}: this machine's queue cannot be read, so none of its jobs is "
            f"started again: {why}"
        )


def _start_after_boot(say: Callable[[str], object]) -> None:
    if os.listdir(queue_folder() / "tickets"):
        # Imported here: on most machines nothing waits, and these modules take 20 ms to load.
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
                f"The machine was restarted; its jobs are being started again: {names}. "
                "`nbtrain queue` shows them."
            )
