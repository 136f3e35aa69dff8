"""Sections of a run YAML: one module for each, the types of their fields, and markers on fields."""
