"""Measurements of this machine, and a step's time computed from them."""
