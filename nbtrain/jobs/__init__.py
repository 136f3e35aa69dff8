"""Submitting, supervising and stopping runs."""
