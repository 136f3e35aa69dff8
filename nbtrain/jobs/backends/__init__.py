"""Backends: the places where a job runs, one folder each; local.py is the backend for this machine."""
