"""What one output of a widget holds.

live front end    the widget, and a picture for whoever opens the notebook without its kernel
nobody watches    the picture alone: in exported HTML, a widget would hide it until a CDN answers
"""

from typing import Any

from ipywidgets import DOMWidget

from nbtrain.lab.widgets.watched import is_watched

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def bundle(widget: DOMWidget, picture_html: str, text: str) -> dict[str, Any]:
    """The mime bundle of a widget with its picture and its words."""
    words = {"text/html": picture_html, "text/plain": text}
    if not is_watched():
        return words
    reference = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {WIDGET_MIME: reference, **words}
