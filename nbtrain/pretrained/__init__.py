"""Model folders in Hugging Face's format: their contents, mapped to our fields and parameters."""
