"""Ways in which an attempt can end before its last step, such as a hang, a failed GPU or a full disk.

jobs/attempt/verdict.py decides which of them applies, from the ranks' exit records. The attempt's record and
the event of a restart store it as `reason`; it is "" if none of them applies.
"""

ROLLBACK = "rollback"
PREEMPTED = "preempted"
# The allocation ended while the attempt had no supervisor.
ALLOCATION = "allocation"
# A rank made no progress, or other ranks gave up waiting for it.
HANG = "hang"
# A rank gave up waiting for another rank, and it is not known which.
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

# Ends that would recur with the same settings, data and machine.
RECURRING = frozenset(
    {
        *(DEVICE_MEMORY, HOST_MEMORY, SHARED_MEMORY, DISK, READ_ONLY),
        *(UNSTABLE, SMALLEST_LOSS_SCALE, USER_ERROR),
    }
)
