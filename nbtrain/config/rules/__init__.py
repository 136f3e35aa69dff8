"""Rules that the fields of a run must satisfy together: one function for each rule."""
