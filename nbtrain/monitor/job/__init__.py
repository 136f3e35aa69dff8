"""Description of a job: conditions, events, replicas and resources, and the tables that show them."""
