"""The what-if page as a widget: sliders that snap to legal layouts, and the cost of each layout.

The script (what_if.js) sends each change to the kernel and draws the answer; planner/search/what_if.py
decides which layouts are legal and computes their costs. Saved notebooks and papermill show the same numbers
as static HTML.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.base.printing.look import PARTS, TIME_PARTS
from nbtrain.base.printing.report import DIM, Facts, Headline, Report, Sentence
from nbtrain.lab.widgets.mime import bundle, show
from nbtrain.planner.run_file import write_run
from nbtrain.planner.search.what_if import WhatIf

BAR_PIXELS = 460
# Computation has the same color as in the time bar, and waiting the color of communication.
NETWORK_PARTS = (TIME_PARTS[0], TIME_PARTS[3])


class WhatIfPage(anywidget.AnyWidget):
    """The what-if page of one run. `state` is the layout that it shows."""

    _esm = Path(__file__).with_name("what_if.js").read_text(encoding="utf-8")
    shown = traitlets.Dict().tag(sync=True)
    """WhatIf.shown() of the layout."""
    answer = traitlets.List(["", ""]).tag(sync=True)
    """Result of "Use this" or of a refused change: "good" or "bad", and the message."""

    def __init__(self, state: WhatIf, **arguments: Any):
        self.state = state
        super().__init__(shown=state.shown(), **arguments)
        self.on_msg(self._on_message)

    def set(self, name: str, value: Any) -> None:
        """Change one value, as its control does. Raises ConfigError if no legal layout has it."""
        self.state = self.state.changed(name, value)
        self.shown = self.state.shown()

    def use(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the layout as a run YAML, with a comment if it does not fit its memory; `answer` says so too.

        Raises ConfigError if the file exists and `overwrite` is False.
        """
        lack = self.state.lack
        warning = f"It does not fit: {lack}." if lack else ""
        note = f"Written by the what-if page: {self.state.layout.words}.\n{warning}"
        written = write_run(self.state.config, path, note, overwrite)
        self.answer = ["bad", f"Written: {written}. {warning}"] if lack else ["good", f"Written: {written}"]
        return written

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        self.answer = ["", ""]
        try:
            if content.get("kind") == "set":
                self.set(content["name"], content["value"])
            elif content.get("kind") == "use":
                path = str(content.get("path", "")).strip()
                if not path:
                    self.answer = ["bad", "Name a file first, e.g. my-run.yaml."]
                    return
                self.use(path)
        except NbtrainError as error:
            self.answer = ["bad", str(error)]

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, static_html(self.shown), static_text(self.shown)), {}

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_()[0])


def static_text(shown: dict[str, Any]) -> str:
    """Return the page as a few lines of text."""
    words = [Sentence(shown["layout"]), Headline(shown["words"])]
    return str(Report(shown["title"], [*words, Facts(shown["rows"])]))


def static_html(shown: dict[str, Any]) -> str:
    """Return the page as HTML without script and style sheet, which untrusted notebooks do not show."""
    escape = html.escape
    controls = "".join(
        f"{escape(one['label'])} <strong>{escape(_value(one['value']))}</strong> &nbsp; "
        for one in shown["controls"]
    )
    return (
        f'<div style="max-width:900px;border:1px solid #9aa2ad;border-radius:8px;padding:10px 14px">'
        f"<strong>{escape(shown['title'])}</strong><br>"
        f'<span style="{DIM}">{escape(shown["layout"])}</span>'
        f"{Headline(shown['words']).html()}"
        f'<div style="font-size:12px">{controls}</div>'
        f"{_memory(shown['memory'])}{_time(shown['time'])}{_networks(shown['networks'])}"
        f"{Facts(shown['rows']).html()}</div>"
    )


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _memory(found: dict[str, Any]) -> str:
    device = found["device_bytes"]
    scale = max(device or 0, *(sum(_sizes(found, stage)) for stage in found["stages"]))
    bars = "".join(
        _bar(stage["label"], _sizes(found, stage), scale, stage["total"], PARTS) for stage in found["stages"]
    )
    against = f", against {found['device_label']} of {found['device']}" if device else ""
    names = [part.replace("_", " ") for part in found["parts"]]
    return _picture(f"Memory{against}", bars, names, PARTS)


def _sizes(found: dict[str, Any], stage: dict[str, Any]) -> list[float]:
    return [stage["parts"].get(part, 0) for part in found["parts"]]


def _time(found: list[list[Any]]) -> str:
    if not found:
        return ""
    seconds = [part[1] for part in found]
    bars = _bar("a step", seconds, sum(seconds), f"{sum(seconds):.3g} s", TIME_PARTS)
    return _picture("Time of a step", bars, [f"{name} {share}" for name, _, share in found], TIME_PARTS)


def _networks(found: list[dict[str, Any]]) -> str:
    """Return a bar for each network, all on one scale: the step, and its part that waits."""
    if not found:
        return ""
    scale = max(sum(value for _, value in bar["parts"]) for bar in found)
    bars = "".join(
        _bar(bar["label"], [value for _, value in bar["parts"]], scale, bar["total"], NETWORK_PARTS)
        for bar in found
    )
    names = [name for name, _ in found[0]["parts"]]
    return _picture("The same step on other networks", bars, names, NETWORK_PARTS)


def _picture(title: str, bars: str, names: list[str], colors: Sequence[str]) -> str:
    legend = " &nbsp; ".join(
        f'<span style="color:{colors[at % len(colors)]}">&#9632;</span> {html.escape(name)}'
        for at, name in enumerate(names)
    )
    small = "font-size:11px"
    return (
        f'<div style="{small};{DIM};margin-top:8px">{html.escape(title)}</div>'
        f"<div>{bars}</div>"
        f'<div style="{small}">{legend}</div>'
    )


def _bar(label: str, values: list[float], scale: float, total: str, colors: Sequence[str]) -> str:
    pieces = "".join(
        f'<span style="display:inline-block;height:12px;width:{100 * value / scale:.2f}%;'
        f'background-color:{colors[at % len(colors)]}"></span>'
        for at, value in enumerate(values)
        if value
    )
    track = (
        f"flex:0 1 {BAR_PIXELS}px;min-width:0;height:12px;background-color:rgba(128,134,144,.3);"
        "white-space:nowrap;font-size:0;overflow:hidden"
    )
    row = "display:flex;align-items:center;gap:8px;padding:1px 0;font-size:12px"
    return (
        f'<div style="{row}"><span style="flex:0 0 52px;white-space:nowrap">{html.escape(label)}</span>'
        f'<div style="{track}">{pieces}</div>'
        f'<span style="white-space:nowrap">{html.escape(total)}</span></div>'
    )
