"""Reads bash scripts: finds the commands that a script would start, without running it.

To follow a statement means to compute its effect, for example on variables and files, without running it.
"""
