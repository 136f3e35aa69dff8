"""The run directory: its paths, the records and states of its jobs, and the files of numbers in it."""
