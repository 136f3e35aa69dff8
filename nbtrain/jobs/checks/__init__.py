"""Checks before a launch: of the run directory, of the limits, and of data and machine."""
