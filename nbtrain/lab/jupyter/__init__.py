"""Configuration files of Jupyter programs, which the wheel installs where those programs read them."""

from pathlib import Path

FOLDER = Path(__file__).with_name("labconfig").parent
"""Folder to add to the environment variable JUPYTER_CONFIG_PATH."""
