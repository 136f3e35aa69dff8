"""What ranks agree on at a step boundary: nothing, save, stop or leave."""

NOTHING, SAVE, LEAVE, STOP = 0, 1, 2, 3
"""The stronger the larger. LEAVE: end the job in no hurry, so that a validation that is due comes first
(train/requests.py). STOP: at once, as a batch system's grace may be seconds."""
