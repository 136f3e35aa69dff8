"""From a run YAML to its tokenizer and dataset, skipping steps that are done."""
