"""Outcomes of a rank: how its process ended, as recorded in the rank's report and in its exit record.

rank_phases.py has the words with which they are shown.
"""

# All steps are done.
FINISHED = "finished"
# The rank saved and exited, on request or at a limit of the run.
STOPPED = "stopped"
# The rank exited so that the job resumes from a checkpoint without the samples of a bad step.
ROLLBACK = "rollback"
# An error ended the rank.
FAILED = "failed"
# A signal ended the rank.
KILLED = "killed"

# Outcomes of a rank that did its work.
COMPLETED = frozenset({FINISHED, STOPPED})
LEFT_IN_ORDER = COMPLETED | {ROLLBACK}
FAILED_OUTCOMES = frozenset({FAILED, KILLED})
# Outcomes that a rank itself can report.
REPORTED = LEFT_IN_ORDER | {FAILED}
