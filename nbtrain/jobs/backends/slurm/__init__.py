"""Slurm backend: a batch script runs the supervisor, which starts one agent per node with srun."""
