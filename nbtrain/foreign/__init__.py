"""Reads, checks, converts to run YAMLs and exports files of other programs."""
