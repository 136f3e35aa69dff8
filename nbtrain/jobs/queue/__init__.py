"""A machine's queue of jobs: list it, change it, and restart its jobs after the machine was restarted."""
