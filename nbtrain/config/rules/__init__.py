"""What a run may ask for: one function for each rule."""
