"""Bad steps, hanging collectives, heartbeats and injected faults."""
