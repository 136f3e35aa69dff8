"""A survey of texts for a new run: how much text, of which kind, in which language."""
