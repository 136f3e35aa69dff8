"""Text: reading sources, cleaning, dropping duplicate documents; tokenizers."""
