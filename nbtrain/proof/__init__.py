"""`nbtrain twin`: a scaled-down trial run of the same layout, checked on the CPU."""
