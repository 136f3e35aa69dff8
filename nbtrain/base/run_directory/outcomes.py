"""Outcomes of a rank: how its process ended, in the rank's report and in its exit record.

rank_phases.py holds the words with which they are shown.
"""

# All steps are done.
FINISHED = "finished"
# It saved and exited, on request or at a limit of the run.
STOPPED = "stopped"
# It exited in order, so that the job resumes from a checkpoint without the samples of a bad step.
ROLLBACK = "rollback"
# An error ended it.
FAILED = "failed"
# A signal ended it.
KILLED = "killed"

# Outcomes of a rank that did what it was to do.
COMPLETED = frozenset({FINISHED, STOPPED})
LEFT_IN_ORDER = COMPLETED | {ROLLBACK}
FAILED_OUTCOMES = frozenset({FAILED, KILLED})
# Outcomes that a rank can report itself.
REPORTED = LEFT_IN_ORDER | {FAILED}
