"""One agent per machine or pod: it starts the ranks of its machine, measures them, and reports their end."""
