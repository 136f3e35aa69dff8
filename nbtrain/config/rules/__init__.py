"""Rules between the fields of a run: one function for each rule."""
