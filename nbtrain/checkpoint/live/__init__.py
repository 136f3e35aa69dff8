"""A running job as saving and loading see it: its parameters, its state and its layout."""
