"""Reads and checks files of other training programs, converts them to run YAMLs, and exports runs to them."""
