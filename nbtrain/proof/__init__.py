"""`nbtrain twin`: a small run of the same shape, proven on CPU."""
