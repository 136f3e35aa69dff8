"""Input files: which of a folder are read, their kinds, compression, and one line of JSON."""
