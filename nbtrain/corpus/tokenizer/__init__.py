"""Byte-level BPE: taken over or trained, loaded, and checked against the reference encoding."""
