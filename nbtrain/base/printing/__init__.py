"""Printing of results and progress, as text, in a terminal and in a notebook."""
