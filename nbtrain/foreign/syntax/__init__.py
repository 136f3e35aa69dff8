"""Parses other programs' files (YAML, JSON and argument lists) and records each value's file and line."""
