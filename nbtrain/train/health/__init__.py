"""Bad steps, hanging collectives, heartbeats and ordered faults."""
