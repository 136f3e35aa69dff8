"""Backends: the places where a job runs, each with its own folder, and the backend for this machine."""
