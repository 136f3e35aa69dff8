"""Submission: start, resume and clone runs, and write the files of a new job."""
