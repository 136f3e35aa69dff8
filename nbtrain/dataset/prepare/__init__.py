"""Prepares the tokenizer and the dataset of a run YAML, skipping steps that are complete."""
