"""How long a step takes, by part, and what its ranks send to each other; of any setup, by arithmetic."""
