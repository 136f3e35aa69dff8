"""Names in run YAMLs: keys of the schema, presets, recipes, architectures, and names of other programs."""
