"""Evaluations of a checkpoint: requests to the model, and metrics of its answers. Never imports torch."""
