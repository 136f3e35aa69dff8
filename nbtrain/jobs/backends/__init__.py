"""Where a job runs: what a backend must offer, and this machine as one."""
