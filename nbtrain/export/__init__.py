"""Checkpoints to other formats."""
