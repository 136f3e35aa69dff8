"""What this machine reaches: products, blocks of the model, collectives, and DeepSpeed's own steps."""
