"""Text data: reading sources, cleaning, removing duplicate documents, and tokenizers."""
