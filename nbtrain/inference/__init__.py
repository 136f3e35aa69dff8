"""Text generation from a checkpoint: `python -m nbtrain.inference` (protocol: generate.py)."""
