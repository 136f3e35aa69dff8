"""Correspondence between the flags and keys of other programs and a run's fields, in both directions."""
