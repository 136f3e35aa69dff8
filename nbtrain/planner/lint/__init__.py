"""Rules that produce findings about a valid run: costs that it could avoid."""
