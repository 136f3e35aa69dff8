"""Logs of a job: their list, their lines, a search, and the last traceback."""
