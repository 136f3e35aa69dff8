"""Profiles of a few steps, with a summary and a picture."""
