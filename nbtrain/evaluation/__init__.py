"""Evaluations: what a checkpoint is asked, and what its answers say; never torch."""
