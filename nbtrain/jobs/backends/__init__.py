"""Backends, the places where a job can run: one folder each, and local.py for this machine."""
