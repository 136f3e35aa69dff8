"""Process groups and parallel layers, independent of any model or YAML."""
