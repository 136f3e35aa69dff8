"""The run directory: its paths, the records and states of its jobs, and its files of metrics and usage."""
