"""This machine: its cores, memory, devices and processes, a job's environment, and the queue's folder."""
