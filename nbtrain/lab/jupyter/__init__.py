"""Settings for Jupyter's programs, as files in the places where they look."""

from pathlib import Path

FOLDER = Path(__file__).with_name("labconfig").parent
"""Folder for the variable JUPYTER_CONFIG_PATH."""
