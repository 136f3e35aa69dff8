"""The wishes that ranks vote on at a step boundary: nothing, save, leave or stop."""

NOTHING, SAVE, LEAVE, STOP = 0, 1, 2, 3
"""A larger number is a stronger wish. LEAVE ends the job after a validation that is due (train/requests.py).
STOP ends it at once, because a batch system may leave seconds only."""
