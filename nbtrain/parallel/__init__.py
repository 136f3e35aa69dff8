"""Process groups and parallel layers, independent of the model and the run's configuration."""
