"""What a run will need: memory, time, tokens and disk, before anything starts."""
