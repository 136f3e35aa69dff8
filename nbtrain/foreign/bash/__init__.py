"""Bash scripts: the commands that a script would start, found without running it."""
