"""The queue of one machine: shown, changed, and started again after a restart of the machine."""
