"""Everything that a submission reads before it checks: the request, the initial weights, data and machine."""
