"""Model serving: engine processes, kept for a notebook or behind an HTTP server; never torch."""
