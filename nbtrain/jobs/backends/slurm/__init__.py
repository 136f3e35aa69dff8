"""Slurm backend: a batch script whose supervisor starts one agent on each node by srun."""
