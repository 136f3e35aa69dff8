"""One attempt of a job: the interface that starts its ranks, how they are watched, and how they ended."""
