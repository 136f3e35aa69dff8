"""The setup that is estimated, the programs that run it, and the terms of an estimate."""
