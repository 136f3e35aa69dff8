"""Real clusters on one machine for tests: Slurm's daemons, and hosts in network namespaces."""
