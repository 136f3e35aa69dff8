"""Advice on a run that is or was running: changes, each with its predicted effect."""
