"""CPU time of another process, with the time of its threads that have ended, to the nanosecond."""

import time


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds that a process has used since its start."""
    # Linux numbers the clock of a process so (CPUCLOCK_SCHED in linux/posix-timers.h).
    return time.clock_gettime(~pid << 3 | 2)
