"""Weights by canonical name from any source: a checkpoint, a model folder, or adapters."""
