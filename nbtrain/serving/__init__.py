"""Model serving: engine processes for a notebook or behind an HTTP server; never imports torch."""
