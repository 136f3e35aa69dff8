"""A job's logs: listing, reading and searching them, and finding the last traceback."""
