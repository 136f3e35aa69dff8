"""Sweeps: many runs of one YAML with other settings, started as devices are free and compared at the end."""
