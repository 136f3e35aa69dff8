"""Read what a submission depends on before the checks: the request, initial weights, data and machine."""
