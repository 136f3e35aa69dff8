"""Hardware of this machine and its use: CPU and memory limits of control groups, and GPUs."""
