"""The contents of one output of a widget.

    live front end    the widget, and a picture for readers who open the notebook without its kernel
    otherwise         only the picture: in exported HTML, a widget would hide it until a CDN responds

A trusted notebook without its kernel shows "Error displaying widget" instead of the picture. So a second,
invisible output has the picture again, with a script that replaces the error with the picture. The picture is
in a script element, which viewers without scripts ignore. Widgets that do not need a kernel have their own
rescue (lab/ui/host/rescue.js).
"""

import json
from typing import Any

from ipywidgets import DOMWidget

from nbtrain.base.printing.notebook import is_watched

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


KEPT = """<script type="application/json" class="nbtrain-kept">{picture}</script><script>
(() => {{
  const kept = document.currentScript.previousElementSibling;
  let looks = 0;
  const look = () => {{
    const area = kept.closest(".jp-OutputArea");
    if (!area) {{
      if (looks++ < 20) setTimeout(look, 500);
      return;
    }}
    for (const output of area.querySelectorAll(".jp-OutputArea-output")) {{
      if (output.contains(kept) || !/Error displaying widget/.test(output.textContent)) continue;
      const place = document.createElement("div");
      place.className = "jp-RenderedHTMLCommon nbtrain-picture";
      place.innerHTML = JSON.parse(kept.textContent);
      output.replaceChildren(place);
      return;
    }}
    if (looks++ < 240) setTimeout(look, 500);
  }};
  look();
}})();
</script>"""


def show(bundle: dict[str, Any]) -> None:
    """Show a MIME bundle in the running cell; for a widget, also the picture that may replace it later."""
    from IPython.display import display

    display(bundle, raw=True)
    if WIDGET_MIME in bundle:
        picture = json.dumps(bundle["text/html"]).replace("<", "\\u003c")
        display({"text/html": KEPT.format(picture=picture), "text/plain": ""}, raw=True)


def bundle(widget: DOMWidget, picture_html: str, text: str) -> dict[str, Any]:
    """Return the MIME bundle of a widget with its picture and its text."""
    words = {"text/html": picture_html, "text/plain": text}
    if not is_watched():
        return words
    reference = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {WIDGET_MIME: reference, **words}
