"""The training engine: building a run's parts, the training loop, evaluation, and health checks."""
