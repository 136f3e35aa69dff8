"""This machine: cores, memory, devices and processes, the environment of a job, and the queue's folder."""
