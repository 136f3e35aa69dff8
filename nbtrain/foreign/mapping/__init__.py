"""Maps the flags and keys of other programs to a run's fields, in both directions."""
