"""This machine: cores, memory and devices, its processes, the environment of a job, the queue's folder."""
