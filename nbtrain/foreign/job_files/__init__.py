"""Training jobs as files describe them: scripts, Slurm batch scripts, manifests, settings of Accelerate."""
