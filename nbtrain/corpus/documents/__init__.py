"""Documents of a corpus: read from the sources in order, cleaned, deduplicated, sampled, counted."""
