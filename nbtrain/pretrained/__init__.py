"""Model folders in Hugging Face's format: their contents, mapped to nbtrain's fields and parameters."""
