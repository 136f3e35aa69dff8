"""The ground: run directory, records, states, errors, files. Standard library only."""
