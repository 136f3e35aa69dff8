"""What a run needs before anything starts: memory by part, time, disk; by arithmetic, without torch."""
