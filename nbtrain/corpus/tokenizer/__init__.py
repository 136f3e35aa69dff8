"""Tokenizers: importing, training (byte-level BPE), loading, and comparing with the reference encoding."""
