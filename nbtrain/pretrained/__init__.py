"""A model's folder as Hugging Face has it: what is in it, and which of our fields and parameters that is."""
