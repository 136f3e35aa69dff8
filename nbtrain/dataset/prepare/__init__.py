"""From a run YAML to its tokenizer and dataset, skipping what is there."""
