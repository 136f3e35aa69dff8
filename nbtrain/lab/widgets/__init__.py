"""What a notebook shows: the launch form, the live panel, TensorBoard."""

from pathlib import Path

PANEL_SCRIPT = Path(__file__).with_name("panel.js")
