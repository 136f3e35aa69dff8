"""Estimates made before a run starts: memory by part, time, disk; computed by arithmetic, without torch."""
