"""Status of a run, read from its records and the user's notes: the smallest part of every view."""
