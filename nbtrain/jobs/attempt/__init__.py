"""One attempt of a job: start its ranks, watch them, and decide how they ended."""
