"""Weights in other programs' formats: written from a checkpoint, converted, and compared."""
