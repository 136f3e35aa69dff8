"""Estimates of a run's memory, time and disk before it starts, computed by arithmetic without torch."""
