"""Text: sources are read, cleaned, and each document kept once; tokenizers."""
