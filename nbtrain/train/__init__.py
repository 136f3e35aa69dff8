"""The training engine: build, loop, evaluate, checkpoint."""
