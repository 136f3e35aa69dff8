"""A run's scalars: read from growing files, reduced to curves, and laid out as charts."""
