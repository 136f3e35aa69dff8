"""Import of models from other programs' files, and export of a run's model with tokenizer and model card."""
