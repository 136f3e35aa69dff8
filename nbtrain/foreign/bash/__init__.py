"""Reads bash scripts: finds the commands that a script would start, without running it.

Each follow_* function simulates one kind of statement: it computes the statement's effect, for example on
variables and files, without running it.
"""
