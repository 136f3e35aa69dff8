"""The setup to estimate, the training programs, the terms of an estimate, and a run's last measurements."""
