"""What a training step needs of DeepSpeed."""
