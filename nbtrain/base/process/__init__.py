"""Processes of one machine: locks, signals, ports, and requests over stdin and stdout."""
