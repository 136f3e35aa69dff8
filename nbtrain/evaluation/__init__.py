"""Evaluations: requests to a checkpoint and metrics of its answers; never imports torch."""
