"""Scalars of a run: read from its files while they grow, reduced to curves, and laid out as charts."""
