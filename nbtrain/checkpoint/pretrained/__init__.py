"""Weights from and for other programs: read into a run, written from a checkpoint, and compared."""
