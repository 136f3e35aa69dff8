"""Evaluations: requests to a checkpoint and the metrics of its answers; never torch."""
