"""Reads training jobs from files: scripts, Slurm batch scripts, manifests and Accelerate configurations."""
