"""The what-if page as a widget: sliders that snap to legal layouts, and the cost of each layout.

The script (what_if.js) sends each change to the kernel and draws the answer; planner/search/what_if.py
decides which layouts are legal and computes their costs. Saved notebooks and papermill show the same numbers
as static HTML.
"""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.base.printing.report import Bar, Bars, Facts, Headline, InNotebook, Report, Sentence
from nbtrain.base.printing.theme import LINE, PAGE_PIXELS
from nbtrain.lab.widgets.mime import bundle, show
from nbtrain.planner.run_file import write_run
from nbtrain.planner.search.what_if import WhatIf


class WhatIfPage(anywidget.AnyWidget):
    """The what-if page of one run. `state` is the layout that it shows."""

    _esm = Path(__file__).with_name("what_if.js").read_text(encoding="utf-8")
    shown = traitlets.Dict().tag(sync=True)
    """Everything that the page shows of the layout: the result of WhatIf.shown()."""
    answer = traitlets.List(["", ""]).tag(sync=True)
    """Result of "Use this" or of a refused change: ["good" or "bad", message]."""

    def __init__(self, state: WhatIf, **arguments: Any):
        self.state = state
        super().__init__(shown=state.shown(), **arguments)
        self.on_msg(self._on_message)

    def set(self, name: str, value: Any) -> None:
        """Change one value, as its control does. Raises ConfigError if no legal layout has this value."""
        self.state = self.state.changed(name, value)
        self.shown = self.state.shown()

    def use(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the layout as a run YAML. If it does not fit into memory, a comment and `answer` say so.

        Raises ConfigError if the file exists and `overwrite` is False.
        """
        lack = self.state.lack
        warning = f"The layout does not fit into memory: {lack}." if lack else ""
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
        return bundle(self, static_html(self.shown), str(report_of(self.shown))), {}

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_()[0])


def report_of(shown: dict[str, Any]) -> Report:
    """Return the page without working controls, as a report for text and HTML."""
    controls = ", ".join(f"{one['label']} {_value(one['value'])}" for one in shown["controls"])
    blocks = [Sentence(shown["layout"]), Headline(shown["words"]), InNotebook(Sentence(controls))]
    bars = (_memory(shown["memory"]), _time(shown["time"]), _networks(shown["networks"]))
    return Report(shown["title"], [*blocks, *filter(None, bars), Facts(shown["rows"])])


def static_html(shown: dict[str, Any]) -> str:
    """Return the page as HTML without script and style sheet, which untrusted notebooks do not show."""
    frame = f"max-width:{PAGE_PIXELS}px;border:1px solid {LINE};border-radius:8px;padding:10px 14px"
    return f'<div style="{frame}">{report_of(shown).html()}</div>'


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _memory(found: dict[str, Any]) -> Bars:
    device = found["device_bytes"]
    against = f", against {found['device_label']} of {found['device']}" if device else ""
    bars = [
        Bar(
            stage["label"],
            [(stage["parts"].get(part, 0), color) for part, color in found["parts"]],
            stage["total"],
        )
        for stage in found["stages"]
    ]
    largest = max(sum(size for size, _ in bar.parts) for bar in bars)
    legend = [(part.replace("_", " "), color) for part, color in found["parts"]]
    return Bars(bars, legend, f"Memory{against}", max(device or 0, largest))


def _time(found: list[list[Any]]) -> Bars | None:
    if not found:
        return None
    total = sum(seconds for _, seconds, *_ in found)
    bar = Bar("a step", [(seconds, color) for _, seconds, _, color in found], f"{total:.3g} s")
    return Bars([bar], [(f"{name} {share}", color) for name, _, share, color in found], "Time of a step")


def _networks(found: list[dict[str, Any]]) -> Bars | None:
    """Return a bar per network, all on one scale: the time of a step, with the part spent waiting."""
    if not found:
        return None
    bars = [
        Bar(bar["label"], [(value, color) for _, value, color in bar["parts"]], bar["total"]) for bar in found
    ]
    legend = [(name, color) for name, _, color in found[0]["parts"]]
    return Bars(bars, legend, "The same step on other networks")
