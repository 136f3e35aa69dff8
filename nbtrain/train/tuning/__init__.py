"""Trials for DeepSpeed's autotuner, with the run's own model, data and engine."""
