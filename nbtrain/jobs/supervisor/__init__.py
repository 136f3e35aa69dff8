"""The process that starts, watches and restarts a job's ranks."""
