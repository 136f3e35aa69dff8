"""Measurements of this machine, and the time of a step computed from them."""
