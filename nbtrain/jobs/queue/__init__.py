"""The queue of one machine: list it, change it, and restart its jobs after a restart of the machine."""
