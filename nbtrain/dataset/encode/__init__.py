"""Text to tokens: shards by worker processes, joined in order."""
