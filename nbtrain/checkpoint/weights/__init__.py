"""Weights by canonical name, whatever wrote them: a checkpoint, a model folder, or adapters."""
