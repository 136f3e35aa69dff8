"""Estimates of a step's time, by part, and of the traffic between its ranks, for any setup."""
