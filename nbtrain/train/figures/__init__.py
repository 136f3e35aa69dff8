"""Training metrics and their reports: throughput, times, alerts, TensorBoard."""
