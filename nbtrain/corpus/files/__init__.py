"""Input files: choice of a folder's files, their kinds, compression, and parsing of a line of JSON."""
