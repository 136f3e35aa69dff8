"""The what-if page as a widget: sliders that snap to legal layouts, and what each layout costs.

The script (what_if.js) sends each change to the kernel and draws the answer; what is legal and what it costs
is said by planner/what_if.py. Saved notebooks and papermill get the same figures as static HTML.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.lab.widgets.mime import bundle
from nbtrain.planner.run_file import write_run
from nbtrain.planner.what_if import WhatIf

COLORS = (
    "#1f77b4", "#5fa8d3", "#0b3c5d", "#328cc1", "#e8710a", "#f2b56b", "#7b52ab", "#b59ad6", "#9aa0a6",
    "#6b7280", "#d3d6da",
)  # fmt: skip
"""Of the parts of memory in their order, as in what_if.js."""
TIME_COLORS = ("#1f77b4", "#5fa8d3", "#9aa0a6", "#e8710a", "#7b52ab")
"""Of the parts of time."""
WORD_COLORS = {"good": "#2e9e4f", "tight": "#e8710a", "bad": "#d32f2f", "": "inherit"}
GREY, SOFT = "#7a828e", "#e4e7eb"
BAR_PIXELS = 460


class WhatIfPage(anywidget.AnyWidget):
    """The page of one run. `state` is the layout that it shows."""

    _esm = Path(__file__).with_name("what_if.js").read_text(encoding="utf-8")
    shown = traitlets.Dict().tag(sync=True)
    """WhatIf.shown() of the layout."""
    answer = traitlets.List(["", ""]).tag(sync=True)
    """What came of "Use this" or of a refused change: good or bad, and words."""

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


def static_text(shown: dict[str, Any]) -> str:
    """The page in a few lines."""
    words = ", ".join(f"{name}: {value}" for name, value, _ in shown["words"])
    rows = "\n".join(f"  {name:<15}{value}" for name, value in shown["rows"])
    return f"{shown['title']}\n{shown['layout']}\n{words}\n{rows}"


def static_html(shown: dict[str, Any]) -> str:
    """The page as HTML without script and style sheet: untrusted notebooks show no others."""
    escape = html.escape
    words = "".join(
        f'<td style="text-align:left;padding:2px 34px 2px 0"><span style="font-size:11px;color:{GREY}">'
        f'{escape(name)}</span><br><strong style="font-size:18px;color:{WORD_COLORS[kind]}">{escape(value)}'
        "</strong></td>"
        for name, value, kind in shown["words"]
    )
    controls = "".join(
        f"{escape(one['label'])} <strong>{escape(_value(one['value']))}</strong> &nbsp; "
        for one in shown["controls"]
    )
    rows = "".join(
        f'<tr><td style="text-align:left;color:{GREY}">{escape(name)}</td>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in shown["rows"]
    )
    return (
        f'<div style="max-width:900px;border:1px solid #9aa2ad;border-radius:8px;padding:10px 14px">'
        f"<strong>{escape(shown['title'])}</strong><br>"
        f'<span style="color:{GREY}">{escape(shown["layout"])}</span>'
        f"<table><tr>{words}</tr></table>"
        f'<div style="font-size:12px">{controls}</div>'
        f"{_memory(shown['memory'])}{_time(shown['time'])}"
        f'<table style="font-size:12px">{rows}</table></div>'
    )


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _memory(found: dict[str, Any]) -> str:
    device = found["device_bytes"]
    scale = max(device or 0, *(sum(_sizes(found, stage)) for stage in found["stages"]))
    bars = "".join(
        _bar(stage["label"], _sizes(found, stage), scale, stage["total"], COLORS) for stage in found["stages"]
    )
    against = f", against {found['device_label']} of {found['device']}" if device else ""
    names = [part.replace("_", " ") for part in found["parts"]]
    return _picture(f"Memory{against}", bars, names, COLORS)


def _sizes(found: dict[str, Any], stage: dict[str, Any]) -> list[float]:
    return [stage["parts"].get(part, 0) for part in found["parts"]]


def _time(found: list[list[Any]]) -> str:
    if not found:
        return ""
    seconds = [part[1] for part in found]
    bars = _bar("a step", seconds, sum(seconds), f"{sum(seconds):.3g} s", TIME_COLORS)
    return _picture("Time of a step", bars, [f"{name} {share}" for name, _, share in found], TIME_COLORS)


def _picture(title: str, bars: str, names: list[str], colors: Sequence[str]) -> str:
    legend = " &nbsp; ".join(
        f'<span style="color:{colors[at % len(colors)]}">&#9632;</span> {html.escape(name)}'
        for at, name in enumerate(names)
    )
    small = f"font-size:11px;color:{GREY}"
    return (
        f'<div style="{small};margin-top:8px">{html.escape(title)}</div>'
        f'<table style="margin:0">{bars}</table>'
        f'<div style="{small}">{legend}</div>'
    )


def _bar(label: str, values: list[float], scale: float, total: str, colors: Sequence[str]) -> str:
    pieces = "".join(
        f'<span style="display:inline-block;height:12px;width:{BAR_PIXELS * value / scale:.1f}px;'
        f'background-color:{colors[at % len(colors)]}"></span>'
        for at, value in enumerate(values)
        if value
    )
    track = (
        f"width:{BAR_PIXELS}px;height:12px;background-color:{SOFT};white-space:nowrap;font-size:0;"
        "overflow:hidden"
    )
    cell = 'style="text-align:left;padding:1px 8px 1px 0;font-size:12px"'
    return (
        f"<tr><td {cell}>{html.escape(label)}</td>"
        f'<td {cell}><div style="{track}">{pieces}</div></td><td {cell}>{html.escape(total)}</td></tr>'
    )
