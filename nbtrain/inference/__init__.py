"""Generates text from a checkpoint: `python -m nbtrain.inference` (fields: generate.py)."""
