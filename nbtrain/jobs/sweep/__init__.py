"""Sweeps: many runs of one YAML with different settings, started as devices become free and then compared."""
