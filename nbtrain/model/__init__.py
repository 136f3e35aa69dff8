"""The GPT: layer list, loss, initialization; independent of paths and DeepSpeed's settings."""
