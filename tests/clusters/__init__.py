"""Real clusters of one machine for tests: Slurm's daemons, and hosts in network namespaces."""
