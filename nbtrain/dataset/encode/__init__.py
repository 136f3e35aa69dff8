"""Encoding of text as tokens: worker processes write shards, which are joined in order."""
