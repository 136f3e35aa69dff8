"""Description of a run: its status with curves, ranks and events, as JSON, text and pictures."""
