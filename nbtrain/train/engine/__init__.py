"""The interface between a training step and DeepSpeed."""
