"""python -m nbtrain.jobs.supervisor RUN_DIR JOB_ID: `nbtrain submit` starts it."""

import sys

from nbtrain.jobs.supervisor.supervise import main

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m nbtrain.jobs.supervisor RUN_DIR JOB_ID   (nbtrain submit starts it)")
    sys.exit(main(sys.argv[1], sys.argv[2]))
