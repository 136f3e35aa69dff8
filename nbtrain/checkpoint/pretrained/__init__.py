"""Weights of other programs: reading into a run, writing from a checkpoint, and comparison."""
