"""Calibration: measure a machine, or the network between machines, for use in plans."""
