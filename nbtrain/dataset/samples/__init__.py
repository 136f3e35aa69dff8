"""Samples of a dataset in Megatron's order: indices, blends, packing."""
