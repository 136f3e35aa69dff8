"""Everything that nbtrain shows of a run: status, curves, ranks and events, as JSON, text and pictures."""
