"""Measured rates of this machine: products, blocks of the model, collectives, and DeepSpeed's own steps."""
