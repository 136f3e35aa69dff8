"""Views of many runs: the list of runs with its filter and columns, and comparisons."""
