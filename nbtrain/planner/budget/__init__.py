"""Cost of a run: device hours, energy, money and disk space."""
