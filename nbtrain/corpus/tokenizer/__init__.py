"""Tokenizers: imported or trained (byte-level BPE), loaded, and checked against the reference encoding."""
