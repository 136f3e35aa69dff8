"""Reads bash scripts: finds the commands that a script would start, without running it."""
