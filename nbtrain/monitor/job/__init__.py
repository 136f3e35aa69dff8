"""Description of a job: conditions, events, replicas and resources, and its tables."""
