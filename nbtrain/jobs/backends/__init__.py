"""Backends: the interface that each place to run a job implements, and the backend for this machine."""
