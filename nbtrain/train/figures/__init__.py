"""What training reports: throughput, times, alerts, TensorBoard."""
