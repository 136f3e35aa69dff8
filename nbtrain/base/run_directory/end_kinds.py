"""Kinds of ends of an attempt. jobs/attempt/verdict.py decides the kind once, from the ranks' exit records;
the attempt's record and the event of a restart hold it as `reason`. An end of no kind has "".
"""

ROLLBACK = "rollback"
PREEMPTED = "preempted"
# The allocation ended while the attempt had no supervisor.
ALLOCATION = "allocation"
# A rank made no progress, or the others gave up waiting for one that is known.
HANG = "hang"
# A rank gave up waiting for another one, and which one is not known.
TIMEOUT = "timeout"
LOST_PEER = "lost peer"
# A signal ended a rank, and nothing shows that memory ran out.
KILLED = "killed"
# A rank is gone without an exit record.
NO_RECORD = "no record"
# A GPU failed.
DEVICE = "device"
DEVICE_MEMORY = "device memory"
HOST_MEMORY = "host memory"
SHARED_MEMORY = "shared memory"
DISK = "disk"
READ_ONLY = "read-only"
# A loss or gradient was NaN or Inf, or the loss jumped, and stability.* did not skip the step.
UNSTABLE = "unstable"
SMALLEST_LOSS_SCALE = "smallest loss scale"
# Another error whose message says what the user has to change.
USER_ERROR = "user error"

# Kinds that come again with the same settings, data and machine.
RECURRING = frozenset(
    {
        *(DEVICE_MEMORY, HOST_MEMORY, SHARED_MEMORY, DISK, READ_ONLY),
        *(UNSTABLE, SMALLEST_LOSS_SCALE, USER_ERROR),
    }
)
