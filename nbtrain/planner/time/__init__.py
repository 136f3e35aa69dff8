"""Estimates of the time of a step and a run, by part, and of the traffic between ranks, for any setup."""
