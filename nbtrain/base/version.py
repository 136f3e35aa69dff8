"""The version of nbtrain, and the folder that the package lies in."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).parents[1]
