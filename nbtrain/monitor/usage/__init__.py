"""A job's resource use: the current use from /proc, and the use over time from files of its nodes."""
