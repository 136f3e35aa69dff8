"""Process groups and what makes a layer parallel; knows no model and no YAML."""
