"""A profile of a few steps, summed up and drawn."""
