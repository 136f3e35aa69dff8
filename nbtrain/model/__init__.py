"""The GPT model: layers, loss and initialization, independent of paths and of DeepSpeed's settings."""
