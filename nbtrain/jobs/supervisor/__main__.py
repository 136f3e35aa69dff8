"""python -m nbtrain.jobs.supervisor [--foreground] RUN_DIR JOB_ID: a backend starts it.

--foreground is for the inside of an allocation or a pod: the process does not detach, and USR1 says that the
allocation ends.
"""

import sys

from nbtrain.jobs.supervisor.supervise import main

if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--foreground"]
    if len(arguments) != 2:
        sys.exit(
            "usage: python -m nbtrain.jobs.supervisor [--foreground] RUN_DIR JOB_ID   "
            "(nbtrain submit starts it)"
        )
    sys.exit(main(arguments[0], arguments[1], foreground=len(arguments) < len(sys.argv) - 1))
