"""Checkpoints: saving, loading, and conversion to other formats."""
