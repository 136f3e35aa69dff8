"""Pages generated from the code: `make docs`."""
