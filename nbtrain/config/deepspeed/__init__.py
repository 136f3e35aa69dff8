"""Derivation of DeepSpeed's configuration from a run's, and the keys that DeepSpeed knows."""
