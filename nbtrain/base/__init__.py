"""Foundation of all packages: run directory, records, states, errors, files. Standard library only."""
