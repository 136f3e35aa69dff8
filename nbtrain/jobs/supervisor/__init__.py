"""The supervisor: the process that starts, watches and restarts a job's ranks."""
