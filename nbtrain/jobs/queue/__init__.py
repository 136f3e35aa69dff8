"""The queue of one machine: the jobs that hold its GPUs and cores, and the jobs that wait for them."""
