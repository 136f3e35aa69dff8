"""The setup that is estimated, the training programs, and the terms of an estimate."""
