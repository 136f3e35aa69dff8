"""Generates text from a checkpoint: `python -m nbtrain.inference.generate` (fields: generate.py)."""
