"""The functions of the Python file that a run's `code` names, as training calls them."""
