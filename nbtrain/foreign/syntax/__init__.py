"""Syntax of other programs' files: YAML, JSON and argument lists, each value with its file and line."""
