"""The status of a run, read from its records and the user's notes; the basis of every view."""
