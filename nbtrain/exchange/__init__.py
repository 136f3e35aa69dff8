"""Models in and out: imported from other programs' files, exported from a run with tokenizer and card."""
