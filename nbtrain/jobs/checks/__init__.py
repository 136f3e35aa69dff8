"""Checks before a launch: the run directory, the limits, the data and the machine."""
